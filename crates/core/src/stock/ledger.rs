//! Pages of the ledger of a SKU, newest movement first.
//!
//! The movements of one warehouse are in the order of their commits. There is no such order across
//! warehouses: a page takes the latest operation among the next movements of each. So a cursor holds
//! one position per warehouse, and later commits move no movement from one page to another.

use std::collections::BTreeMap;
use std::fmt;

use super::{Movement, MovementKind, OperationId, Sku, Warehouse};

/// The version of cursors as text.
pub(super) const VERSION: &str = "v1";

/// A number in a cursor, which has at most 18 digits.
pub(super) fn number(text: &str) -> Option<i64> {
    let is_number = text.len() <= 18 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// The start of the next page: the `level_version` of its first movement, in each warehouse that has more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerCursor(pub BTreeMap<Warehouse, i64>);

impl LedgerCursor {
    /// Parses what [`fmt::Display`] wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (version, positions) = text.split_once(';')?;
        let position = |text: &str| {
            let (warehouse, position) = text.split_once(':')?;
            Some((Warehouse::parse(warehouse).ok()?, number(position)?))
        };
        let positions: Option<BTreeMap<_, _>> = positions.split(';').map(position).collect();
        (version == VERSION).then_some(Self(positions?))
    }
}

impl fmt::Display for LedgerCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERSION)?;
        for (warehouse, position) in &self.0 {
            write!(f, ";{warehouse}:{position}")?;
        }
        Ok(())
    }
}

/// Which movements to read.
#[derive(Debug, Clone)]
pub struct MovementFilter {
    /// The SKU.
    pub sku: Sku,
    /// Only this warehouse.
    pub warehouse: Option<Warehouse>,
    /// Only this kind.
    pub kind: Option<MovementKind>,
    /// Only this reference.
    pub reference: Option<String>,
    /// The start of the page; `None` is the newest movement.
    pub from: Option<LedgerCursor>,
    /// The maximum number of movements.
    pub limit: u32,
}

/// A page of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerPage {
    /// Newest first. May be fewer than the limit, or none, although there is a next page.
    pub movements: Vec<Movement>,
    /// The start of the next page; `None` on the last page.
    pub next: Option<LedgerCursor>,
}

/// The movements of a warehouse that are not on the page.
#[derive(Debug, Default)]
struct Unread {
    /// Those that match the filter, the newest last.
    movements: Vec<Movement>,
    /// The operation and the `level_version` of the first movement behind those that were read.
    end: Option<(OperationId, i64)>,
}

impl Unread {
    /// The same of the next movement, which need not match the filter at the end.
    fn head(&self) -> Option<(OperationId, i64)> {
        let next = self.movements.last();
        next.map(|one| (one.operation, one.level_version))
            .or(self.end)
    }
}

impl LedgerPage {
    /// Merges the movements of several warehouses into a page of at most `limit`. `found`: at most `rows`
    /// of each warehouse, in any order, and none that it leaves out is newer. A warehouse with fewer has no
    /// more, unless it is in `ends`, with the operation and the `level_version` of the first movement that
    /// was not read.
    #[must_use]
    pub fn merge(
        found: Vec<Movement>,
        rows: u32,
        ends: BTreeMap<Warehouse, (OperationId, i64)>,
        limit: u32,
    ) -> Self {
        let mut warehouses: BTreeMap<Warehouse, Unread> = BTreeMap::new();
        for (warehouse, end) in ends {
            warehouses.entry(warehouse).or_default().end = Some(end);
        }
        for movement in found {
            let unread = warehouses.entry(movement.warehouse.clone()).or_default();
            unread.movements.push(movement);
        }
        for unread in warehouses.values_mut() {
            unread.movements.sort_by_key(|one| one.level_version);
            if unread.movements.len() >= rows as usize {
                let last = unread.movements.remove(0);
                unread.end = Some((last.operation, last.level_version));
            }
        }
        let mut movements = Vec::new();
        while movements.len() < limit as usize {
            let newest = warehouses.values_mut().max_by_key(|unread| unread.head());
            // Not beyond an end: the movements behind it may be newer than those of other warehouses.
            match newest.and_then(|unread| unread.movements.pop()) {
                Some(movement) => movements.push(movement),
                None => break,
            }
        }
        let next = warehouses.into_iter();
        let next = next.filter_map(|(warehouse, unread)| Some((warehouse, unread.head()?.1)));
        let next: BTreeMap<_, _> = next.collect();
        let next = (!next.is_empty()).then_some(LedgerCursor(next));
        Self { movements, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_parsed_as_it_was_written() {
        let shanghai = Warehouse::parse("上海仓").unwrap();
        let cursor = LedgerCursor(BTreeMap::from([(Warehouse::default(), 42), (shanghai, 7)]));
        let text = cursor.to_string();
        assert_eq!(text, "v1;main:42;上海仓:7");
        assert_eq!(LedgerCursor::parse(&text), Some(cursor));
    }

    #[test]
    fn other_texts_are_no_cursors() {
        for text in [
            "",
            "v1",
            "v1;",
            "v2;main:1",
            "v1;main",
            "v1;main:x",
            "v1;main:",
            "v1;main:+1",
            "v1;main:-1",
            "v1;main:00000000000000000000000000000007",
            "v1;a b:1",
            "v1;main:1;",
            "01234567-89ab-7def-8123-456789abcdef",
        ] {
            assert_eq!(LedgerCursor::parse(text), None, "{text}");
        }
    }
}
