//! The journal's entries: what Redis wrote down, on its way into the SQL ledger.
//!
//! An entry is what one call of a script has done to a level: its movements, each with the units that
//! it left, and the level after the last of them. A movement is written by this service and passes
//! through Redis as one text; the rest is written by the script.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sqlx::FromRow;
use stocklock_core::stock::Durability;

use crate::sql::ledger_row::LedgerRow;

mod text;

/// The identity of an entry in a stream: milliseconds, and a number within them. Ordered by value,
/// which its text is not (`9-0` comes before `10-0`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, FromRow)]
pub(super) struct EntryId {
    #[sqlx(rename = "journal_millis")]
    pub(super) millis: i64,
    #[sqlx(rename = "journal_number")]
    pub(super) number: i64,
}

impl FromStr for EntryId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('-').and_then(|(millis, number)| {
            let (millis, number) = (millis.parse().ok()?, number.parse().ok()?);
            Some(Self { millis, number })
        });
        parsed.ok_or_else(|| format!("`{text}` is no entry's id"))
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

/// A movement as a line of an entry; it is what Redis remembers of the operation, too.
pub(super) fn line(available: i64, movement: &str) -> String {
    format!("{available} {movement}")
}

/// Reads such a line.
pub(super) fn parse_line(line: &str, entry: EntryId) -> Result<LedgerRow, String> {
    let no_line = || format!("`{line}` is not a line of an entry");
    let (available, movement) = line.split_once(' ').ok_or_else(no_line)?;
    Ok(LedgerRow {
        entry,
        available_after: available.parse().map_err(|_| no_line())?,
        durability: Durability::Redis.as_str().to_owned(),
        ..LedgerRow::from_journal_text(movement)?
    })
}

/// One entry: movements of one level, and the level that they left behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Journaled {
    pub(super) id: EntryId,
    pub(super) movements: Movements,
    pub(super) on_hand: i64,
    pub(super) held: i64,
    pub(super) backorder_limit: i64,
    pub(super) version: i64,
}

impl Journaled {
    /// Which level it left behind.
    pub(super) fn place(&self) -> (&str, &str) {
        self.movements.place()
    }
}

/// The movements of an entry, in their order: one at least, and all of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Movements(Vec<LedgerRow>);

impl Movements {
    /// Reads an entry's lines.
    pub(super) fn parse(lines: &str, id: EntryId) -> Result<Self, String> {
        let movements = lines.split('\n').map(|line| parse_line(line, id));
        let movements = Self(movements.collect::<Result<_, _>>()?);
        let place = movements.place();
        let of_one_level = |row: &LedgerRow| (row.sku.as_str(), row.warehouse.as_str()) == place;
        if !movements.iter().all(of_one_level) {
            return Err("movements of several levels".to_owned());
        }
        Ok(movements)
    }

    fn place(&self) -> (&str, &str) {
        (self.0[0].sku.as_str(), self.0[0].warehouse.as_str())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LedgerRow> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The movements of all entries.
pub(super) fn movements<'a>(entries: &[&'a Journaled]) -> Vec<&'a LedgerRow> {
    entries
        .iter()
        .flat_map(|entry| entry.movements.iter())
        .collect()
}

/// For each level that `entries` changed, the last of them, in (SKU, warehouse) order: the order in
/// which rows are locked.
pub(super) fn last_of_each_level<'a>(entries: &[&'a Journaled]) -> Vec<&'a Journaled> {
    let mut last: BTreeMap<(&str, &str), &Journaled> = BTreeMap::new();
    for &entry in entries {
        let known = last.entry(entry.place()).or_insert(entry);
        if known.id < entry.id {
            *known = entry;
        }
    }
    last.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::text::tests::row;
    use super::*;

    fn entry(id: &str, sku: &str) -> Journaled {
        let id = id.parse().unwrap();
        let lines = [
            line(7, &row(sku).to_journal_text()),
            line(6, &row(sku).to_journal_text()),
        ];
        Journaled {
            id,
            movements: Movements::parse(&lines.join("\n"), id).unwrap(),
            on_hand: 5,
            held: 1,
            backorder_limit: 2,
            version: 9,
        }
    }

    #[test]
    fn ids_compare_by_value() {
        let id = |text: &str| text.parse::<EntryId>().unwrap();
        assert!(id("9-0") < id("10-0"));
        assert!(id("1700000000000-9") < id("1700000000000-10"));
        assert_eq!(id("12-3").to_string(), "12-3");
        for bad in ["", "1", "-", "1-", "a-1", "1-2-3"] {
            assert!(bad.parse::<EntryId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn parsed_line_is_a_row_of_its_entry() {
        let id = "951782400123-4".parse().unwrap();
        let text = line(4, &row("a").to_journal_text());
        let expected = LedgerRow {
            available_after: 4,
            entry: id,
            ..row("a")
        };
        assert_eq!(parse_line(&text, id), Ok(expected.clone()));
        assert_eq!(expected.movement().unwrap().available_after, 4);
    }

    #[test]
    fn an_entry_is_of_one_level() {
        let text = |sku| line(7, &row(sku).to_journal_text());
        let parse = |lines: &[String]| Movements::parse(&lines.join("\n"), EntryId::default());
        let movements = parse(&[text("a"), text("a")]).unwrap();
        assert_eq!(movements.len(), 2);
        assert_eq!(movements.0[1].available_after, 7);
        assert_eq!(movements.0[1].sku.as_str(), "a");
        assert!(parse(&[text("a"), text("b")]).is_err());
        assert!(parse(&[text("a"), String::new()]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&[row("a").to_journal_text()]).is_err());
    }

    #[test]
    fn the_last_entry_of_each_level_counts_and_levels_come_in_order() {
        let entries = [
            entry("9-0", "b"),
            entry("10-0", "a"),
            entry("8-5", "b"),
            entry("9-1", "a"),
        ];
        let last = last_of_each_level(&entries.iter().collect::<Vec<_>>());
        let found: Vec<_> = last
            .iter()
            .map(|e| (e.place().0, e.id.to_string()))
            .collect();
        assert_eq!(found, [("a", "10-0".to_owned()), ("b", "9-0".to_owned())]);
    }
}
