//! Journal entries as Redis's streams have them: in the journals, and among the entries that SQL
//! refuses.

use std::time::Duration;

use redis::streams::{StreamId, StreamRangeReply};
use redis::{Cmd, Pipeline, from_redis_value};

use super::binding::may_be_loaded;
use super::errors::{bad_answer, is_redirected};
use super::keys::{Keys, Shard, sku_of_level};
use super::nodes::{Nodes, of_shards};
use super::{RedisStore, scripts};
use crate::StoreError;
use crate::journal::{self, EntryId, JournalEntry, parse_movements, parse_old_movements};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::Movement;

/// How many entries one command reads. A larger page would delay the deductions, which share the
/// connection.
const PAGE: u32 = 100;

/// The maximum number of movements in an entry. Redis needs less than a millisecond for this many.
pub(super) const PER_ENTRY: u8 = 64;

/// How many movements wait in a journal with this many entries, given the counter `waiting`. The
/// function `count_waiting` of `scripts/prelude.lua` does the same.
pub(super) fn waiting_movements(entries: u64, counted: Option<&str>) -> u64 {
    let most = entries.saturating_mul(u64::from(PER_ENTRY));
    let counted = counted.and_then(|counted| counted.parse().ok());
    counted.unwrap_or(0).min(most).max(entries)
}

/// How much is in a journal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    pub(super) entries: u64,
    /// At least as many as entries.
    pub(super) movements: u64,
    /// How many of its entries SQL refuses. They are not in the journal any more.
    pub(super) rejected: u64,
}

impl Size {
    /// The sizes of all journals, in the order of the shards. `None`: its slot moves.
    pub(super) async fn of_all(
        nodes: &Nodes,
        keys: &Keys,
    ) -> Result<Vec<Option<Self>>, StoreError> {
        let sizes = |shard, commands: &mut Pipeline| {
            commands
                .xlen(keys.journal(shard))
                .hget(keys.counters(shard), "waiting")
                .xlen(keys.rejected(shard));
        };
        let found = nodes.try_read_each(None, &of_shards(keys, sizes)).await?;
        let sizes = found.into_iter().map(|found| match found {
            Ok((entries, counted, rejected)) => {
                let counted: Option<String> = counted;
                Ok(Some(Self {
                    entries,
                    movements: waiting_movements(entries, counted.as_deref()),
                    rejected,
                }))
            }
            // A slot that moves does not keep the other journals waiting.
            Err(error) if is_redirected(&error) => Ok(None),
            Err(error) => Err(error),
        });
        sizes.collect()
    }
}

/// A stream of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// The journal.
    Journal,
    /// The entries of the journal that SQL refuses.
    Rejected,
}

impl Keys {
    pub(super) fn stream(&self, source: Source, shard: Shard) -> String {
        match source {
            Source::Journal => self.journal(shard),
            Source::Rejected => self.rejected(shard),
        }
    }
}

/// An entry of a stream. Other programs can write to the stream, so parsing may fail.
#[derive(Debug)]
pub(super) struct StreamEntry {
    pub(super) source: Source,
    pub(super) shard: Shard,
    /// Its id in the stream.
    pub(super) id: String,
    /// The id that it has, or had, in the journal.
    pub(super) entry: String,
    /// The key of the level that the entry changed.
    pub(super) level: String,
    /// Why SQL refused it, if that is known.
    pub(super) reason: Option<String>,
    /// Whether a later release wrote it in a format that this one cannot read.
    pub(super) is_newer: bool,
    pub(super) parsed: Result<JournalEntry, String>,
}

impl StreamEntry {
    pub(super) fn parse_all(
        shard: Shard,
        source: Source,
        stream: Vec<StreamId>,
    ) -> impl Iterator<Item = Self> {
        stream.into_iter().map(move |read| {
            let set_aside = |name| match source {
                Source::Journal => None,
                Source::Rejected => field(&read, name).ok(),
            };
            let entry = set_aside("entry").unwrap_or_else(|| read.id.clone());
            Self {
                source,
                shard,
                level: field(&read, "level").unwrap_or_default(),
                reason: set_aside("reason"),
                is_newer: field(&read, "v").is_ok_and(|version| journal::is_newer(&version)),
                parsed: parse(&read, &entry),
                entry,
                id: read.id,
            }
        })
    }

    /// The movements. None if the entry could not be parsed.
    pub(super) fn movements(&self) -> &[LedgerRow] {
        let parsed = self.parsed.as_ref();
        parsed.map_or(&[], |entry| &entry.movements)
    }

    /// How many movements the journal's counter has for the entry.
    pub(super) fn counted(&self) -> usize {
        match self.source {
            Source::Journal => self.movements().len(),
            Source::Rejected => 0,
        }
    }
}

/// What a journal consumer has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalReport {
    /// How many movements wait in all journals. `None` if that is unknown.
    pub waiting: Option<u64>,
    /// How many entries SQL refuses. `None` if that is unknown.
    pub rejected: Option<u64>,
    /// How many entries it has applied since its last report although the ledger had them.
    pub repeated: u64,
}

/// A journal entry that SQL refuses.
#[derive(Debug)]
pub struct RejectedEntry {
    /// The id that it had in the journal.
    pub id: String,
    /// The key of its level in Redis.
    pub level: String,
    /// Why it was refused.
    pub reason: String,
    /// Its movements. None if they cannot be read.
    pub movements: Vec<Movement>,
}

impl RejectedEntry {
    fn of(read: StreamEntry) -> Result<Self, StoreError> {
        let movements = read.movements().iter().cloned().map(LedgerRow::movement);
        Ok(Self {
            movements: movements.collect::<Result<_, _>>()?,
            id: read.entry,
            level: read.level,
            reason: read.reason.unwrap_or_default(),
        })
    }
}

impl RedisStore {
    /// The journal entries that SQL refuses.
    pub(crate) async fn rejected_entries(&self) -> Result<Vec<RejectedEntry>, StoreError> {
        let mut found = Vec::new();
        for shard in Shard::all() {
            let read = self.read_stream(Source::Rejected, shard, "+", |_| true);
            let read = read.await?.into_iter().map(RejectedEntry::of);
            found.extend(read.collect::<Result<Vec<_>, _>>()?);
        }
        Ok(found)
    }

    /// Reads a stream in pages, up to the entry `last`, and keeps the entries that `keep` selects.
    pub(super) async fn read_stream(
        &self,
        source: Source,
        shard: Shard,
        last: &str,
        keep: impl Fn(&StreamEntry) -> bool,
    ) -> Result<Vec<StreamEntry>, StoreError> {
        let keys = self.keys_to_read().await?;
        let stream = keys.stream(source, shard);
        let (mut found, mut from) = (Vec::new(), "-".to_owned());
        loop {
            let command = Cmd::xrange_count(&stream, &from, last, PAGE);
            let page: StreamRangeReply = self.nodes.read(keys.slot(shard), &command).await?;
            let Some(end) = page.ids.last() else {
                return Ok(found);
            };
            from = format!("({}", end.id);
            found.extend(StreamEntry::parse_all(shard, source, page.ids).filter(&keep));
        }
    }

    /// How long the oldest movement waits; zero if none waits.
    pub(crate) async fn oldest_waits(&self) -> Result<Duration, StoreError> {
        let keys = self.keys_to_read().await?;
        let first = |shard, commands: &mut Pipeline| {
            commands.invoke_script(&scripts::FIRST_ENTRY.key(keys.journal(shard)));
        };
        let script = Some(&*scripts::FIRST_ENTRY);
        let first: Vec<[Option<String>; 1]> = self.nodes.read_shards(keys, script, first).await?;
        let (now, _) = self.clocks(keys).await?;
        let ids = first
            .into_iter()
            .flatten()
            .flatten()
            .map(|id| id.parse::<EntryId>());
        let ids = ids.collect::<Result<Vec<_>, _>>().map_err(bad_answer)?;
        let oldest = ids.iter().map(|id| id.millis).min().unwrap_or(now);
        Ok(Duration::from_millis(
            now.saturating_sub(oldest).try_into().unwrap_or(0),
        ))
    }

    /// Whether SQL has every movement that was written to a journal up to this time, in milliseconds
    /// since 1970, and no script that expired by then can still write one.
    pub(crate) async fn is_applied_past(&self, millis: i64) -> Result<bool, StoreError> {
        let keys = self.keys_to_read().await?;
        // Before the journals: ids of entries never go back.
        let (now, _) = self.clocks(keys).await?;
        // An entry is deleted when SQL has it.
        let oldest = |shard, commands: &mut Pipeline| {
            commands.xrange_count(keys.journal(shard), "-", "+", 1);
        };
        let oldest: Vec<[StreamRangeReply; 1]> = self.nodes.read_shards(keys, None, oldest).await?;
        // The id of an entry may come from a node whose clock was ahead, so one in the future says nothing.
        let (_, latest) = self.clocks(keys).await?;
        let later = millis + 1..=latest;
        let is_later = |id: &str| {
            id.parse()
                .is_ok_and(|id: EntryId| later.contains(&id.millis))
        };
        let mut oldest = oldest.iter().flatten().flat_map(|page| &page.ids);
        if now <= millis || !oldest.all(|entry| is_later(&entry.id)) {
            return Ok(false);
        }
        // After the journals: an entry may have been set aside since.
        let rejected = |shard, commands: &mut Pipeline| _ = commands.xlen(keys.rejected(shard));
        let rejected: Vec<[u64; 1]> = self.nodes.read_shards(keys, None, rejected).await?;
        for (shard, _) in Shard::all().zip(rejected).filter(|(_, [count])| *count > 0) {
            let is_earlier = |entry: &StreamEntry| !is_later(&entry.entry);
            let earlier = self.read_stream(Source::Rejected, shard, "+", is_earlier);
            if !earlier.await?.is_empty() {
                return Ok(false);
            }
        }
        // Last: if Redis has lost its data, a consumer may still be applying entries that it has read before.
        let bound = |shard, commands: &mut Pipeline| _ = commands.get(keys.bound(shard));
        let bound: Vec<[Option<String>; 1]> = self.nodes.read_shards(keys, None, bound).await?;
        let is_bound = |shard: Option<String>| shard.is_some_and(|key| may_be_loaded(&key));
        Ok(bound.into_iter().flatten().all(is_bound) || self.sql.bound_redis().await?.is_none())
    }
}

fn field(entry: &StreamId, name: &str) -> Result<String, String> {
    let value = entry
        .map
        .get(name)
        .ok_or_else(|| format!("the field `{name}` is missing"))?;
    from_redis_value(value.clone()).map_err(|error| error.to_string())
}

/// Parses an entry that has, or had, this id in the journal.
fn parse(entry: &StreamId, id: &str) -> Result<JournalEntry, String> {
    let number = |name| -> Result<i64, String> {
        let text = field(entry, name)?;
        text.parse()
            .map_err(|_| format!("the field `{name}` is not a number: `{text}`"))
    };
    // The version comes first, because it decides what the other fields mean.
    let version = if entry.map.contains_key("v") {
        journal::parse_version(&field(entry, "v")?)?
    } else {
        1
    };
    let (id, lines) = (id.parse()?, field(entry, "movements")?);
    let movements = if version == 1 {
        parse_old_movements(&lines, id)?
    } else {
        let sku = sku_of_level(&field(entry, "level")?)?;
        parse_movements(&lines, &sku, &field(entry, "common")?, id)?
    };
    Ok(JournalEntry {
        id,
        movements,
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
    use crate::journal::tests::entry;

    /// An entry with this field in addition, or in place of its own.
    fn entry_with(name: &str, text: &str) -> StreamId {
        let [common, lines] = entry("a");
        let fields = [
            ("v", "2"),
            ("level", "stock:{1f.10}:a:main"),
            ("common", &common),
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
                "3",
                "version 3, but this build reads versions up to 2; upgrade",
            ),
            ("v", "", "`` is not a version"),
            ("v", "0", "`0` is not a version"),
            ("v", "-1", "`-1` is not a version"),
            ("v", "1.0", "`1.0` is not a version"),
            ("held", "x", "the field `held` is not a number: `x`"),
            ("movements", "", "`` is not a movement"),
            ("common", "main", "is not a movement"),
            ("level", "a", "`a` is not the key of a level"),
        ] {
            let error = parse(&entry_with(name, text), "12-3").unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let mut incomplete = entry_with("v", "2");
        incomplete.map.remove("held");
        let error = parse(&incomplete, "12-3").unwrap_err();
        assert_eq!(error, "the field `held` is missing");
    }
}
