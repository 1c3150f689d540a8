//! Reading the journal's entries.

use redis::from_redis_value;
use redis::streams::{StreamId, StreamRangeReply};

use super::RedisStore;
use crate::StoreError;
use crate::journal::{EntryId, Journaled, Movements};

/// The most movements of an entry; as in `scripts/prelude.lua`. So many keep Redis busy for less than
/// a millisecond.
pub(super) const PER_ENTRY: u8 = 64;

/// How many movements wait in a journal with so many entries, and a tally that has `counted` so many:
/// as the function `count_waiting` of `scripts/prelude.lua` has it.
pub(super) fn waiting_movements(entries: i64, counted: Option<&str>) -> i64 {
    let most = entries.saturating_mul(i64::from(PER_ENTRY));
    let counted = counted.and_then(|counted| counted.parse().ok());
    counted.unwrap_or(0).min(most).max(entries)
}

/// An entry as the driver yields it, and what it says, if it says anything that we understand.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: String,
    /// The key of the level that it changed.
    pub(super) level: String,
    pub(super) journaled: Result<Journaled, String>,
}

impl Entry {
    /// How many movements it has; one that nobody understands counts as one.
    pub(super) fn movements(&self) -> usize {
        let journaled = self.journaled.as_ref();
        journaled.map_or(1, |journaled| journaled.movements.len())
    }

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
    let id = entry.id.parse()?;
    Ok(Journaled {
        id,
        movements: Movements::parse(&text(entry, "movements")?, id)?,
        on_hand: number("on_hand")?,
        held: number("held")?,
        backorder_limit: number("backorder_limit")?,
        version: number("version")?,
    })
}

/// How many entries of a journal a page has: not so many that sales, whose answers come on the same
/// connection, would wait for it.
const PAGE: u32 = 100;

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
            .arg(PAGE);
        let page: StreamRangeReply = self.shared.read(&command).await?;
        Ok(page.ids.into_iter().map(Entry::of).collect())
    }
}
