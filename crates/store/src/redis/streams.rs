//! Journal entries as Redis's streams have them.

use redis::from_redis_value;
use redis::streams::StreamId;

use super::keys::Shard;
use crate::journal::{self, JournalEntry, parse_movements};
use crate::sql::ledger_row::LedgerRow;

/// The maximum number of movements in an entry. Redis needs less than a millisecond for this many.
pub(super) const PER_ENTRY: u8 = 64;

/// How many movements wait in a journal with this many entries, given the counter `waiting`. The
/// function `count_waiting` of `scripts/prelude.lua` does the same.
pub(super) fn waiting_movements(entries: u64, counted: Option<&str>) -> u64 {
    let most = entries.saturating_mul(u64::from(PER_ENTRY));
    let counted = counted.and_then(|counted| counted.parse().ok());
    counted.unwrap_or(0).min(most).max(entries)
}

/// An entry of a journal. Other programs can write to the stream, so parsing may fail.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) shard: Shard,
    pub(super) id: String,
    /// The key of the level that the entry changed.
    pub(super) level: String,
    pub(super) parsed: Result<JournalEntry, String>,
}

impl StreamEntry {
    pub(super) fn parse_all(shard: Shard, stream: Vec<StreamId>) -> impl Iterator<Item = Self> {
        stream.into_iter().map(move |entry| Self {
            shard,
            level: field(&entry, "level").unwrap_or_default(),
            parsed: parse(&entry),
            id: entry.id,
        })
    }

    /// The movements. None if the entry could not be parsed.
    pub(super) fn movements(&self) -> &[LedgerRow] {
        let parsed = self.parsed.as_ref();
        parsed.map_or(&[], |entry| &entry.movements)
    }
}

fn field(entry: &StreamId, name: &str) -> Result<String, String> {
    let value = entry
        .map
        .get(name)
        .ok_or_else(|| format!("the field `{name}` is missing"))?;
    from_redis_value(value.clone()).map_err(|error| error.to_string())
}

fn parse(entry: &StreamId) -> Result<JournalEntry, String> {
    let number = |name| -> Result<i64, String> {
        let text = field(entry, name)?;
        text.parse()
            .map_err(|_| format!("the field `{name}` is not a number: `{text}`"))
    };
    // The version comes first, because it decides what the other fields mean.
    if entry.map.contains_key("v") {
        journal::check_version(&field(entry, "v")?)?;
    }
    let id = entry.id.parse()?;
    Ok(JournalEntry {
        id,
        movements: parse_movements(&field(entry, "movements")?, id)?,
        on_hand: number("on_hand")?,
        held: number("held")?,
        backorder_limit: number("backorder_limit")?,
        version: number("version")?,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use redis::Value;

    use super::*;
    use crate::journal::tests::lines;

    /// An entry with this field in addition, or in place of its own.
    fn entry_with(name: &str, text: &str) -> StreamId {
        let lines = lines("a");
        let fields = [
            ("level", "stock:{1f.10}:a:main"),
            ("movements", &lines),
            ("on_hand", "5"),
            ("held", "1"),
            ("backorder_limit", "2"),
            ("version", "9"),
            (name, text),
        ];
        let value = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let map: HashMap<_, _> = fields
            .map(|(name, text)| (name.to_owned(), value(text)))
            .into();
        StreamId {
            id: "12-3".to_owned(),
            map,
            ..StreamId::default()
        }
    }

    #[test]
    fn invalid_entry_is_refused_with_the_reason() {
        for (name, text, reason) in [
            (
                "v",
                "2",
                "version 2, but this build reads versions up to 1; upgrade",
            ),
            ("v", "", "`` is not a version"),
            ("v", "0", "`0` is not a version"),
            ("v", "-1", "`-1` is not a version"),
            ("v", "1.0", "`1.0` is not a version"),
            ("held", "x", "the field `held` is not a number: `x`"),
            ("movements", "", "is not a line of a journal entry"),
        ] {
            let error = parse(&entry_with(name, text)).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let mut incomplete = entry_with("v", "1");
        incomplete.map.remove("held");
        let error = parse(&incomplete).unwrap_err();
        assert_eq!(error, "the field `held` is missing");
    }
}
