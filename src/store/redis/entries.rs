//! Reading the journal's entries.

use redis::from_redis_value;
use redis::streams::{StreamId, StreamRangeReply};

use super::RedisStore;
use crate::store::StoreError;
use crate::store::journal::{EntryId, Journaled, Note};

/// An entry as the driver yields it, and what it says, if it says anything that we understand.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: String,
    /// The key of the level that it changed.
    pub(super) level: String,
    pub(super) journaled: Result<Journaled, String>,
}

impl Entry {
    pub(super) fn of(stream: StreamId) -> Self {
        Self {
            level: text(&stream, "level").unwrap_or_default(),
            journaled: journaled(&stream),
            id: stream.id,
        }
    }
}

fn text(entry: &StreamId, field: &str) -> Result<String, String> {
    let value = entry
        .map
        .get(field)
        .ok_or_else(|| format!("it has no `{field}`"))?;
    from_redis_value(value.clone()).map_err(|error| error.to_string())
}

fn journaled(entry: &StreamId) -> Result<Journaled, String> {
    let number = |field| -> Result<i64, String> {
        let text = text(entry, field)?;
        text.parse()
            .map_err(|_| format!("its `{field}` is `{text}`"))
    };
    Ok(Journaled {
        id: entry.id.parse()?,
        note: Note::parse(&text(entry, "movement")?)?,
        on_hand: number("on_hand")?,
        held: number("held")?,
        backorder_limit: number("backorder_limit")?,
        version: number("version")?,
    })
}

impl RedisStore {
    /// A page of a journal's entries, from after `after` up to `last`.
    pub(super) async fn journal_page(
        &self,
        journal: &str,
        after: Option<&str>,
        last: EntryId,
    ) -> Result<Vec<Entry>, StoreError> {
        let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
        let mut command = redis::cmd("XRANGE");
        command
            .arg(journal)
            .arg(from)
            .arg(last.to_string())
            .arg("COUNT")
            .arg(1000);
        let page: StreamRangeReply = self.shared.read(&command).await?;
        Ok(page.ids.into_iter().map(Entry::of).collect())
    }
}
