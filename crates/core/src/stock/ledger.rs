//! Pages of the ledger of a SKU, newest movement first.
//!
//! The movements of one warehouse are in the order of their commits. There is no such order across
//! warehouses: a page takes the latest operation among the next movements of each. So a cursor holds
//! one position per warehouse, and later commits move no movement from one page to another.

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

use super::{Movement, MovementKind, OperationId, Sku, Warehouse};

/// The version of [`LedgerCursor`] as text. Release 0.1.0 wrote an operation id alone.
const VERSION: &str = "v2";

/// The start of the rest of one warehouse's ledger. The movements that have a `level_version` come
/// first, then those of older releases in the order of their operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerPosition {
    /// At this `level_version`.
    Numbered(i64),
    /// At this operation, among the movements without a `level_version`.
    Unnumbered(OperationId),
}

impl LedgerPosition {
    /// The length of an operation as text.
    const OPERATION: usize = 36;

    /// How many digits a version has at most.
    const DIGITS: usize = 18;

    /// The start of a ledger.
    pub const NEWEST: Self = Self::Numbered(i64::MAX);

    /// Parses what [`fmt::Display`] wrote; `None` for anything else.
    fn parse(text: &str) -> Option<Self> {
        if text.len() == Self::OPERATION {
            let operation = Uuid::parse_str(text).ok()?;
            return Some(Self::Unnumbered(OperationId(operation)));
        }
        let is_number = text.len() <= Self::DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        let version = text.parse().ok().filter(|_| is_number)?;
        Some(Self::Numbered(version))
    }

    fn of(movement: &Movement) -> Self {
        match movement.level_version {
            Some(version) => Self::Numbered(version),
            None => Self::Unnumbered(movement.operation),
        }
    }
}

impl fmt::Display for LedgerPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Numbered(version) => write!(f, "{version}"),
            Self::Unnumbered(operation) => write!(f, "{operation}"),
        }
    }
}

/// The start of the next page: a position in each warehouse that has more movements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LedgerCursor(pub BTreeMap<Warehouse, LedgerPosition>);

impl LedgerCursor {
    /// Parses what [`fmt::Display`] wrote; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (version, positions) = text.split_once(';')?;
        let position = |text: &str| {
            let (warehouse, position) = text.split_once(':')?;
            let position = LedgerPosition::parse(position)?;
            Some((Warehouse::parse(warehouse).ok()?, position))
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
    /// Newest first.
    pub movements: Vec<Movement>,
    /// The start of the next page; `None` on the last page.
    pub next: Option<LedgerCursor>,
}

impl LedgerPage {
    /// Merges the movements of several warehouses into a page of at most `limit`. Each warehouse has
    /// up to one more than the limit, in any order, and none that it leaves out is newer.
    #[must_use]
    pub fn merge(found: Vec<Movement>, limit: u32) -> Self {
        let mut warehouses: BTreeMap<Warehouse, Vec<Movement>> = BTreeMap::new();
        for movement in found {
            let warehouse = movement.warehouse.clone();
            warehouses.entry(warehouse).or_default().push(movement);
        }
        for unread in warehouses.values_mut() {
            // The newest last. Movements without a version are older than those with one.
            unread.sort_by_key(|one| (one.level_version, one.operation));
        }
        let mut movements = Vec::new();
        while movements.len() < limit as usize {
            let newest = warehouses.values_mut().max_by_key(|unread| {
                let next = unread.last();
                next.map(|movement| movement.operation)
            });
            match newest.and_then(Vec::pop) {
                Some(movement) => movements.push(movement),
                None => break,
            }
        }
        let next = warehouses.into_iter().filter_map(|(warehouse, unread)| {
            let position = LedgerPosition::of(unread.last()?);
            Some((warehouse, position))
        });
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
        let operation = OperationId(Uuid::from_u128(7));
        let cursor = LedgerCursor(BTreeMap::from([
            (Warehouse::default(), LedgerPosition::Numbered(42)),
            (
                Warehouse::parse("上海仓").unwrap(),
                LedgerPosition::Unnumbered(operation),
            ),
        ]));
        let text = cursor.to_string();
        assert_eq!(
            text,
            "v2;main:42;上海仓:00000000-0000-0000-0000-000000000007"
        );
        assert_eq!(LedgerCursor::parse(&text), Some(cursor));
    }

    #[test]
    fn other_texts_are_no_cursors() {
        let operation = Uuid::from_u128(7).to_string();
        for text in [
            "",
            "v2",
            "v2;",
            "v1;main:1",
            "v2;main",
            "v2;main:x",
            "v2;main:",
            "v2;main:+1",
            "v2;main:-1",
            "v2;main:00000000000000000000000000000007",
            "v2;a b:1",
            "v2;main:1;",
            &operation,
        ] {
            assert_eq!(LedgerCursor::parse(text), None, "{text}");
        }
    }
}
