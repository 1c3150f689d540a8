//! The journal's entries: what Redis wrote down, on its way into the SQL ledger.
//!
//! An entry is what one call of a script has done to a level: its movements, each with the units that
//! it left, and the level after the last of them. A movement is written by this service and passes
//! through Redis as one text; the rest is written by the script.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use stocklock_core::stock::{Durability, Movement, OperationId, Sku, Warehouse};

mod note;

pub(super) use note::Note;

/// The identity of an entry in a stream: milliseconds, and a number within them. Ordered by value,
/// which its text is not (`9-0` comes before `10-0`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EntryId {
    pub(super) millis: i64,
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

impl EntryId {
    /// When Redis wrote it: RFC 3339, UTC, in milliseconds.
    fn instant(self) -> String {
        const DAY: i64 = 86_400_000;
        let (days, millis) = (self.millis.div_euclid(DAY), self.millis.rem_euclid(DAY));
        // The proleptic Gregorian calendar in eras of 400 years that begin on a 1st of March.
        let since_march_0000 = days + 719_468;
        let era = since_march_0000.div_euclid(146_097);
        let day = since_march_0000.rem_euclid(146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) = if month < 10 {
            (era * 400 + year, month + 3)
        } else {
            (era * 400 + year + 1, month - 9)
        };
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.millis, self.number)
    }
}

/// A movement, the units that were available right after it, and the entry that it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Noted {
    pub(super) id: EntryId,
    pub(super) note: Note<'static>,
    pub(super) available: i64,
}

/// A movement as a line of an entry; it is what Redis remembers of the operation, too.
pub(super) fn line(available: i64, note: &str) -> String {
    format!("{available} {note}")
}

impl Noted {
    /// Of which level.
    fn place(&self) -> (&str, &str) {
        (&self.note.sku, &self.note.warehouse)
    }

    /// Reads such a line.
    pub(super) fn parse(line: &str, id: EntryId) -> Result<Self, String> {
        let no_line = || format!("`{line}` is no line of an entry");
        let (available, note) = line.split_once(' ').ok_or_else(no_line)?;
        Ok(Self {
            id,
            note: Note::parse(note)?,
            available: available.parse().map_err(|_| no_line())?,
        })
    }

    /// The movement as the ledger will hold it.
    pub(super) fn movement(self) -> Result<Movement, String> {
        let Self {
            id,
            note,
            available,
        } = self;
        let request_hash = note.request_hash()?;
        Ok(Movement {
            operation: OperationId(note.operation),
            sku: Sku::parse(note.sku).map_err(|error| error.to_string())?,
            warehouse: Warehouse::parse(note.warehouse).map_err(|error| error.to_string())?,
            kind: note.kind,
            delta: note.delta,
            available_after: available,
            read_version: note.read_version,
            strategy: note.strategy.map(Cow::into_owned),
            durability: Durability::Redis,
            request_hash,
            reason: note.reason.map(Cow::into_owned),
            reference: note.reference.map(Cow::into_owned),
            created_at: id.instant(),
        })
    }
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
        self.movements.0[0].place()
    }
}

/// The movements of an entry, in their order: one at least, and all of one level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Movements(Vec<Noted>);

impl Movements {
    /// Reads an entry's lines.
    pub(super) fn parse(lines: &str, id: EntryId) -> Result<Self, String> {
        let movements = lines.split('\n').map(|line| Noted::parse(line, id));
        let movements = movements.collect::<Result<Vec<_>, _>>()?;
        if movements
            .iter()
            .any(|other| other.place() != movements[0].place())
        {
            return Err("movements of several levels".to_owned());
        }
        Ok(Self(movements))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Noted> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The movements of all entries.
pub(super) fn movements<'a>(entries: &[&'a Journaled]) -> Vec<&'a Noted> {
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
    use super::note::tests::note;
    use super::*;

    fn entry(id: &str, sku: &str) -> Journaled {
        let id = id.parse().unwrap();
        let lines = [line(7, &note(sku).to_text()), line(6, &note(sku).to_text())];
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
    fn a_line_is_a_movement_of_the_ledger() {
        let (id, text) = (
            "951782400123-4".parse().unwrap(),
            line(4, &note("a").to_text()),
        );
        let movement = Noted::parse(&text, id).unwrap().movement().unwrap();
        assert_eq!(movement.available_after, 4);
        assert_eq!(movement.created_at, "2000-02-29T00:00:00.123Z");
    }

    #[test]
    fn an_entry_is_of_one_level() {
        let text = |sku| line(7, &note(sku).to_text());
        let parse = |lines: &[String]| Movements::parse(&lines.join("\n"), EntryId::default());
        let movements = parse(&[text("a"), text("a")]).unwrap();
        assert_eq!(movements.len(), 2);
        assert_eq!(movements.0[1].available, 7);
        assert_eq!(movements.0[1].note, note("a"));
        assert!(parse(&[text("a"), text("b")]).is_err());
        assert!(parse(&[text("a"), String::new()]).is_err());
        assert!(parse(&[]).is_err());
        assert!(parse(&[note("a").to_text()]).is_err());
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
