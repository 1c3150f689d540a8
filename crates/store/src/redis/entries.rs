//! Reads journal entries from the Redis stream.

use redis::from_redis_value;
use redis::streams::{StreamId, StreamRangeReply};

use super::RedisStore;
use crate::StoreError;
use crate::journal::{self, EntryId, JournalEntry, Movements};

/// The maximum number of movements in an entry, as in `scripts/prelude.lua`. Redis needs less than a
/// millisecond for this many.
pub(super) const PER_ENTRY: u8 = 64;

/// How many movements wait in a journal with this many entries, given the counter `waiting`. The
/// function `count_waiting` of `scripts/prelude.lua` does the same.
pub(super) fn waiting_movements(entries: i64, counted: Option<&str>) -> i64 {
    let most = entries.saturating_mul(i64::from(PER_ENTRY));
    let counted = counted.and_then(|counted| counted.parse().ok());
    counted.unwrap_or(0).min(most).max(entries)
}

/// An entry of the stream. Other programs can write to the stream, so parsing may fail.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) id: String,
    /// The key of the level that the entry changed.
    pub(super) level: String,
    pub(super) parsed: Result<JournalEntry, String>,
}

impl StreamEntry {
    /// The number of movements. An entry that could not be parsed counts as one.
    pub(super) fn movements(&self) -> usize {
        let parsed = self.parsed.as_ref();
        parsed.map_or(1, |entry| entry.movements.len())
    }

    pub(super) fn from_stream(stream: StreamId) -> Self {
        Self {
            level: field(&stream, "level").unwrap_or_default(),
            parsed: parse(&stream),
            id: stream.id,
        }
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
        movements: Movements::parse(&field(entry, "movements")?, id)?,
        on_hand: number("on_hand")?,
        held: number("held")?,
        backorder_limit: number("backorder_limit")?,
        version: number("version")?,
    })
}

/// How many entries one command reads. A larger page would delay the deductions, which share the
/// connection.
const PAGE: u32 = 100;

impl RedisStore {
    /// Reads a page of a journal's entries, after `after` and up to `last`.
    pub(super) async fn journal_page(
        &self,
        journal: &str,
        after: Option<&str>,
        last: EntryId,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut command = redis::cmd("XRANGE");
        command
            .arg(journal)
            .arg(from)
            .arg(last.to_string())
            .arg("COUNT")
            .arg(PAGE);
        let page: StreamRangeReply = self.shared.read(&command).await?;
        Ok(page.ids.into_iter().map(StreamEntry::from_stream).collect())
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::journal::tests::lines;

    fn entry(version: Option<&str>) -> StreamId {
        let fields = [
            ("level", "stock:{1f.10}:a:main"),
            ("movements", &lines("a")),
            ("on_hand", "5"),
            ("held", "1"),
            ("backorder_limit", "2"),
            ("version", "9"),
        ];
        let value = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut map: std::collections::HashMap<_, _> = fields
            .into_iter()
            .map(|(name, text)| (name.to_owned(), value(text)))
            .collect();
        map.extend(version.map(|version| ("v".to_owned(), value(version))));
        StreamId {
            id: "12-3".to_owned(),
            map,
            ..StreamId::default()
        }
    }

    #[test]
    fn entry_without_version_is_version_1() {
        let old = parse(&entry(None)).unwrap();
        assert_eq!(old.version, 9);
        assert_eq!(old.movements.len(), 2);
        assert_eq!(parse(&entry(Some("1"))), Ok(old));
    }

    #[test]
    fn entry_with_higher_version_is_refused() {
        let read = StreamEntry::from_stream(entry(Some("2")));
        assert_eq!(read.level, "stock:{1f.10}:a:main");
        assert_eq!(read.movements(), 1);
        let error = read.parsed.unwrap_err();
        assert!(
            error.contains("version 2") && error.contains("upgrade"),
            "{error}"
        );
    }

    #[test]
    fn entry_with_invalid_version_is_refused() {
        for version in ["", "0", "-1", "one", "1.0"] {
            assert!(parse(&entry(Some(version))).is_err(), "{version}");
        }
    }

    #[test]
    fn missing_field_is_named_in_the_error() {
        let mut broken = entry(None);
        broken.map.remove("held");
        assert_eq!(
            parse(&broken),
            Err("the field `held` is missing".to_owned())
        );
    }
}
