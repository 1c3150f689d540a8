//! The journal: the writes to Redis-home levels that are not yet applied to the SQL ledger.
//!
//! One call of a script appends one entry. It holds the movements of one level, each with the units
//! available after it, and the level after the last movement. A movement is a text that this service
//! writes and Redis does not interpret; the script writes the other fields.
//!
//! An entry's field `v` is the version of its format. Entries without it have version 1. A build
//! refuses higher versions, because it cannot know what their fields mean.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use sqlx::FromRow;
use stocklock_core::stock::Durability;

use crate::sql::ledger_row::LedgerRow;

mod text;

/// The version of the entries that this build writes, and the highest version that it reads.
pub(super) const VERSION: u32 = 1;

/// Checks the field `v` of an entry.
pub(super) fn check_version(text: &str) -> Result<(), String> {
    match text.parse::<u32>() {
        Ok(1..=VERSION) => Ok(()),
        Ok(version) if version > VERSION => Err(format!(
            "the journal entry has version {version}, but this build reads versions up to \
             {VERSION}; upgrade this replica"
        )),
        _ => Err(format!("`{text}` is not a version of a journal entry")),
    }
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

/// Formats a movement as a line of an entry. The dedup entry has the same text.
pub(super) fn format_line(available: i64, movement: &str) -> String {
    format!("{available} {movement}")
}

/// Parses a line that [`format_line`] wrote.
pub(super) fn parse_line(line: &str, entry: EntryId) -> Result<LedgerRow, String> {
    let no_line = || format!("`{line}` is not a line of a journal entry");
    let (available, movement) = line.split_once(' ').ok_or_else(no_line)?;
    Ok(LedgerRow {
        entry,
        available_after: available.parse().map_err(|_| no_line())?,
        durability: Durability::Redis.as_str().to_owned(),
        ..LedgerRow::from_journal_text(movement)?
    })
}

/// One entry: movements of one level, and the level after them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JournalEntry {
    pub(super) id: EntryId,
    pub(super) movements: Movements,
    pub(super) on_hand: i64,
    pub(super) held: i64,
    pub(super) backorder_limit: i64,
    pub(super) version: i64,
}

impl JournalEntry {
    /// The SKU and the warehouse of the level.
    pub(super) fn place(&self) -> (&str, &str) {
        self.movements.place()
    }
}

/// The movements of an entry in their order: at least one, all of the same level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Movements(Vec<LedgerRow>);

impl Movements {
    /// Parses an entry's lines.
    pub(super) fn parse(lines: &str, id: EntryId) -> Result<Self, String> {
        let movements = lines.split('\n').map(|line| parse_line(line, id));
        let movements = Self(movements.collect::<Result<_, _>>()?);
        let place = movements.place();
        let of_one_level = |row: &LedgerRow| (row.sku.as_str(), row.warehouse.as_str()) == place;
        if !movements.iter().all(of_one_level) {
            return Err("the movements belong to several levels".to_owned());
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
pub(super) fn movements<'a>(entries: &[&'a JournalEntry]) -> Vec<&'a LedgerRow> {
    entries
        .iter()
        .flat_map(|entry| entry.movements.iter())
        .collect()
}

/// The last entry of each level, in (SKU, warehouse) order. SQL locks rows in that order.
pub(super) fn last_of_each_level<'a>(entries: &[&'a JournalEntry]) -> Vec<&'a JournalEntry> {
    let mut last: BTreeMap<(&str, &str), &JournalEntry> = BTreeMap::new();
    for &entry in entries {
        let known = last.entry(entry.place()).or_insert(entry);
        if known.id < entry.id {
            *known = entry;
        }
    }
    last.into_values().collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::text::tests::row;
    use super::*;

    /// The field `movements` of an entry with two movements.
    pub(crate) fn lines(sku: &str) -> String {
        let text = row(sku).to_journal_text();
        [format_line(7, &text), format_line(6, &text)].join("\n")
    }

    fn entry(id: &str, sku: &str) -> JournalEntry {
        let id = id.parse().unwrap();
        JournalEntry {
            id,
            movements: Movements::parse(&lines(sku), id).unwrap(),
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
        let text = format_line(4, &row("a").to_journal_text());
        let expected = LedgerRow {
            available_after: 4,
            entry: id,
            ..row("a")
        };
        assert_eq!(parse_line(&text, id), Ok(expected.clone()));
        assert_eq!(expected.movement().unwrap().available_after, 4);
    }

    #[test]
    fn movements_of_one_entry_have_one_level() {
        let text = |sku| format_line(7, &row(sku).to_journal_text());
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
    fn last_entries_come_in_order_of_their_levels() {
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
