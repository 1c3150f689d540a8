//! The journal: the writes to Redis-home levels that are not yet applied to the SQL ledger.
//!
//! One call of a script appends one entry. It holds the movements of one level, each with the units
//! available after it, and the level after the last movement. A movement is a text that this service
//! writes and Redis does not interpret ([`mod@line`]); the script writes the other fields.
//!
//! An entry's field `v` is the version of its format. Entries of version 1 are those of release 0.1.0
//! ([`text`]); some have no field `v`. A build refuses higher versions, because it cannot know what their
//! fields mean.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sqlx::FromRow;

use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::Sku;

mod line;
mod text;

pub(super) use line::{dedup_entry, journal_line, parse_dedup_entry};

/// The version of the entries that this build writes, and the highest version that it reads.
pub(super) const VERSION: u32 = 2;

/// Parses the field `v` of an entry.
pub(super) fn parse_version(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(version @ 1..=VERSION) => Ok(version),
        Ok(version) if version > VERSION => Err(format!(
            "the journal entry has version {version}, but this build reads versions up to \
             {VERSION}; upgrade this replica"
        )),
        _ => Err(format!("`{text}` is not a version of a journal entry")),
    }
}

/// Whether the field `v` of an entry has a version that only later releases read.
pub(super) fn is_newer(text: &str) -> bool {
    text.parse().is_ok_and(|version: u32| version > VERSION)
}

/// The id of a stream entry: milliseconds, and a number within the millisecond. Ids compare by value,
/// not as text: `9-0` comes before `10-0`.
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
        parsed.ok_or_else(|| format!("`{text}` is not the id of a stream entry"))
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

/// Parses a line of an entry of version 1, or a dedup entry of release 0.1.0.
pub(super) fn parse_old_line(line: &str, entry: EntryId) -> Result<LedgerRow, String> {
    let no_line = || format!("`{line}` is not a line of a journal entry");
    let (available, movement) = line.split_once(' ').ok_or_else(no_line)?;
    Ok(LedgerRow {
        entry,
        available_after: available.parse().map_err(|_| no_line())?,
        ..LedgerRow::from_journal_text(movement)?
    })
}

/// One entry: movements of one level, and the level after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalEntry {
    pub(super) id: EntryId,
    /// At least one, all of the same level.
    pub(super) movements: Vec<LedgerRow>,
    pub(super) on_hand: i64,
    pub(super) held: i64,
    pub(super) backorder_limit: i64,
    pub(super) version: i64,
}

impl JournalEntry {
    /// The SKU and the warehouse of the level.
    pub(super) fn place(&self) -> (&str, &str) {
        place(&self.movements[0])
    }
}

fn place(row: &LedgerRow) -> (&str, &str) {
    (row.sku.as_str(), row.warehouse.as_str())
}

/// Parses the lines of an entry.
pub(super) fn parse_movements(
    lines: &str,
    sku: &Sku,
    common: &str,
    id: EntryId,
) -> Result<Vec<LedgerRow>, String> {
    let movements = lines.split('\n');
    let parsed = movements.map(|line| line::parse_line(line, sku, common, id));
    parsed.collect()
}

/// The same for an entry of version 1.
pub(super) fn parse_old_movements(lines: &str, id: EntryId) -> Result<Vec<LedgerRow>, String> {
    let movements = lines.split('\n').map(|line| parse_old_line(line, id));
    let movements = movements.collect::<Result<Vec<_>, _>>()?;
    let is_elsewhere = |row: &LedgerRow| place(row) != place(&movements[0]);
    if movements.iter().any(is_elsewhere) {
        return Err("the movements belong to several levels".to_owned());
    }
    Ok(movements)
}

/// The last entry of each level, in (SKU, warehouse) order. SQL locks rows in that order.
pub(super) fn last_of_each_level<'a>(entries: &[&'a JournalEntry]) -> Vec<&'a JournalEntry> {
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| entry.id);
    let last: BTreeMap<_, _> = entries.into_iter().map(|e| (e.place(), e)).collect();
    last.into_values().collect()
}

#[cfg(test)]
pub(super) mod tests {
    pub(crate) use super::text::tests::row;
    use super::*;

    /// The fields `common` and `movements` of an entry with two movements.
    pub(crate) fn entry(sku: &str) -> [String; 2] {
        let (row, key) = (row(sku), Some("k"));
        let movement = row.movement_text();
        let lines = [7, 6].map(|available| journal_line(key, available, &movement));
        [row.common_text(), lines.join("\n")]
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
    fn movements_of_an_entry_are_parsed() {
        let id = "951782400123-4".parse().unwrap();
        let of_entry = |available_after| LedgerRow {
            available_after,
            entry: id,
            ..row("a")
        };
        let sku = &row("a").sku;
        let [common, lines] = entry("a");
        let parsed = parse_movements(&lines, sku, &common, id);
        assert_eq!(parsed, Ok(vec![of_entry(7), of_entry(6)]));
        for bad in [lines + "\n", String::new()] {
            let parsed = parse_movements(&bad, sku, &common, id);
            assert!(parsed.is_err(), "{bad}");
        }
    }

    #[test]
    fn movements_of_an_old_entry_have_one_level() {
        let id = EntryId::default();
        let line = format!("7 {}", text::tests::text());
        let parsed = parse_old_movements(&line, id).unwrap();
        assert_eq!(
            (parsed[0].available_after, &parsed[0].sku),
            (7, &row("a").sku)
        );
        let elsewhere = line.replace("上海仓", "main");
        for bad in [
            format!("{line}\n{elsewhere}"),
            line.clone() + "\n",
            line.replace("7 ", ""),
            String::new(),
        ] {
            assert!(parse_old_movements(&bad, id).is_err(), "{bad}");
        }
    }

    #[test]
    fn last_entries_come_in_order_of_their_levels() {
        let entries = [("9-0", "b"), ("10-0", "a"), ("8-5", "b"), ("9-1", "a")];
        let entries = entries.map(|(id, sku)| JournalEntry {
            id: id.parse().unwrap(),
            movements: vec![row(sku)],
            on_hand: 5,
            held: 1,
            backorder_limit: 2,
            version: 9,
        });
        let last = last_of_each_level(&entries.iter().collect::<Vec<_>>());
        let found: Vec<_> = last
            .iter()
            .map(|entry| (entry.place().0, entry.id.to_string()))
            .collect();
        assert_eq!(found, [("a", "10-0".to_owned()), ("b", "9-0".to_owned())]);
    }
}
