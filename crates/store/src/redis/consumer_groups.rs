//! Redis consumer groups: how a consumer finds journals, and reads and claims their entries.
//!
//! The first write creates a journal. Consumers create only the group of an existing journal, so a
//! Redis without Redis-home stock stays empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamInfoGroupsReply, StreamReadReply};

use super::entries::{StreamEntry, waiting_movements};
use super::failure::{connecting, is_connection_error};
use super::keys::{Keys, Shard};
use super::{RedisStore, scripts};
use crate::StoreError;

/// The consumer group of each journal.
pub(super) const GROUP: &str = "ledger";

/// How many entries of one journal a consumer reads at once. It must be able to apply this many, each
/// with the maximum number of movements, before other consumers claim them.
pub(super) const AT_ONCE: usize = 32;

/// An entry and its journal.
#[derive(Debug)]
pub(super) struct ReadEntry {
    pub(super) shard: Shard,
    pub(super) entry: StreamEntry,
}

/// The connection of one consumer. It sends blocking commands, so it must not be shared.
#[derive(Debug)]
pub(super) struct ConsumerConnection<'a> {
    connection: MultiplexedConnection,
    keys: &'a Keys,
    name: &'a str,
    /// The existing journals, and how many movements each had at the last refresh.
    waiting: BTreeMap<Shard, u64>,
    /// The number of entries in all journals at the last refresh.
    pub(super) entries: usize,
    /// The journals that have the group, each with the cursor for the next `XAUTOCLAIM`.
    cursors: BTreeMap<Shard, String>,
    /// Journals whose group could not be created. A warning was logged once for each.
    refused: BTreeSet<Shard>,
}

impl RedisStore {
    /// Opens a connection whose commands may block for up to `wait`.
    pub(super) async fn consumer<'a>(
        &'a self,
        name: &'a str,
        wait: Duration,
    ) -> Result<ConsumerConnection<'a>, StoreError> {
        let keys = self.keys().await?;
        let connection = self
            .connector
            .with_blocking_wait(wait)
            .connect()
            .await
            .map_err(connecting)?;
        Ok(ConsumerConnection {
            connection,
            keys,
            name,
            waiting: BTreeMap::new(),
            entries: 0,
            cursors: BTreeMap::new(),
            refused: BTreeSet::new(),
        })
    }
}

impl ConsumerConnection<'_> {
    /// The keys of the journals that have the group.
    fn journals(&self) -> Vec<String> {
        let shards = self.cursors.keys();
        shards.map(|shard| self.keys.journal(*shard)).collect()
    }

    /// Finds new journals, and returns how many movements wait in all journals.
    pub(super) async fn refresh(&mut self) -> RedisResult<u64> {
        let mut exist = redis::cmd("EXISTS");
        for shard in Shard::all() {
            exist.arg(self.keys.journal(shard));
        }
        let there: usize = exist.query_async(&mut self.connection).await?;
        if there != self.cursors.len() {
            self.find_journals().await?;
        }
        self.entries = 0;
        if self.waiting.is_empty() {
            return Ok(0);
        }
        let mut commands = redis::pipe();
        for shard in self.waiting.keys() {
            commands.cmd("XLEN").arg(self.keys.journal(*shard));
            let counters = self.keys.counters(*shard);
            commands.cmd("HGET").arg(counters).arg("waiting");
        }
        let found: Vec<Option<String>> = commands.query_async(&mut self.connection).await?;
        for (known, found) in self.waiting.values_mut().zip(found.chunks_exact(2)) {
            let entries = found[0].as_ref().and_then(|entries| entries.parse().ok());
            let entries = entries.unwrap_or(0);
            self.entries += usize::try_from(entries).unwrap_or(0);
            let movements = waiting_movements(entries, found[1].as_deref());
            *known = u64::try_from(movements).unwrap_or(0);
        }
        Ok(self.waiting.values().sum())
    }

    async fn find_journals(&mut self) -> RedisResult<()> {
        let mut commands = redis::pipe();
        for shard in Shard::all() {
            commands.cmd("EXISTS").arg(self.keys.journal(shard));
        }
        let there: Vec<bool> = commands.query_async(&mut self.connection).await?;
        let there = Shard::all().zip(there).filter(|(_, there)| *there);
        self.waiting = there.map(|(shard, _)| (shard, 0)).collect();
        self.cursors
            .retain(|shard, _| self.waiting.contains_key(shard));
        let new = self.waiting.keys().copied();
        let new: Vec<Shard> = new
            .filter(|shard| !self.cursors.contains_key(shard))
            .collect();
        self.join_groups(&new).await
    }

    /// Creates the groups of these journals if they are missing. `XINFO` comes first, because a Redis
    /// that is out of memory refuses `XGROUP CREATE` even for an existing group, and then the journals
    /// must be emptied.
    async fn join_groups(&mut self, new: &[Shard]) -> RedisResult<()> {
        if new.is_empty() {
            return Ok(());
        }
        let mut commands = redis::pipe();
        for shard in new {
            let journal = self.keys.journal(*shard);
            commands.cmd("XINFO").arg("GROUPS").arg(journal);
        }
        let groups: Vec<StreamInfoGroupsReply> = commands.query_async(&mut self.connection).await?;
        for (shard, found) in new.iter().zip(groups) {
            let has_it = found.groups.iter().any(|group| group.name == GROUP);
            if has_it || self.create_group(*shard).await? {
                self.cursors.insert(*shard, "0-0".to_owned());
            }
        }
        Ok(())
    }

    /// Creates the group at the journal's first entry, and returns whether the group exists. If Redis
    /// refuses, the other journals can still be read, and a later refresh tries again.
    async fn create_group(&mut self, shard: Shard) -> RedisResult<bool> {
        let journal = self.keys.journal(shard);
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(&journal).arg(GROUP).arg("0");
        match command.exec_async(&mut self.connection).await {
            Err(error) if is_connection_error(&error) => Err(error),
            // Another consumer created it.
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(true),
            Err(error) => {
                if self.refused.insert(shard) {
                    tracing::warn!(journal, %error, "the consumer group of a journal could not be created");
                }
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }

    /// Reads entries that no consumer has read. If there are none, waits for one up to `wait`.
    pub(super) async fn read_new(&mut self, wait: Duration) -> RedisResult<Vec<ReadEntry>> {
        let journals = self.journals();
        if journals.is_empty() {
            tokio::time::sleep(wait).await;
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("XREADGROUP");
        command
            .arg("GROUP")
            .arg(GROUP)
            .arg(self.name)
            .arg("COUNT")
            .arg(AT_ONCE);
        if let Ok(wait @ 1..) = u64::try_from(wait.as_millis()) {
            command.arg("BLOCK").arg(wait);
        }
        command
            .arg("STREAMS")
            .arg(&journals)
            .arg(vec![">"; journals.len()]);
        let reply: Option<StreamReadReply> = command.query_async(&mut self.connection).await?;
        let mut read = Vec::new();
        for stream in reply.into_iter().flat_map(|reply| reply.keys) {
            let shard = Shard::all().find(|shard| self.keys.journal(*shard) == stream.key);
            let shard = shard.expect("the reply has only requested journals");
            read.extend(stream.ids.into_iter().map(|id| ReadEntry {
                shard,
                entry: StreamEntry::from_stream(id),
            }));
        }
        Ok(read)
    }

    /// Claims entries that another consumer read at least `idle` ago and has not acknowledged. It
    /// skips journals that were empty at the last refresh.
    pub(super) async fn claim(&mut self, idle: Duration) -> RedisResult<Vec<ReadEntry>> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let has_entries = |shard: &Shard| self.waiting.get(shard).is_some_and(|length| *length > 0);
        let shards: Vec<Shard> = self.cursors.keys().copied().filter(has_entries).collect();
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let mut commands = redis::pipe();
        for shard in &shards {
            commands
                .cmd("XAUTOCLAIM")
                .arg(self.keys.journal(*shard))
                .arg(GROUP)
                .arg(self.name)
                .arg(idle)
                .arg(&self.cursors[shard])
                .arg("COUNT")
                .arg(AT_ONCE);
        }
        let replies: Vec<StreamAutoClaimReply> = commands.query_async(&mut self.connection).await?;
        let mut read = Vec::new();
        for (shard, reply) in shards.into_iter().zip(replies) {
            self.cursors.insert(shard, reply.next_stream_id);
            read.extend(reply.claimed.into_iter().map(|id| ReadEntry {
                shard,
                entry: StreamEntry::from_stream(id),
            }));
        }
        Ok(read)
    }

    /// Deletes consumers that hold no entries and were idle for at least `idle`.
    pub(super) async fn retire(&mut self, idle: Duration) -> RedisResult<()> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut commands = redis::pipe();
        let journals = self.journals();
        if journals.is_empty() {
            return Ok(());
        }
        for journal in journals {
            commands
                .cmd("EVAL")
                .arg(&scripts::RETIRE.code)
                .arg(1)
                .arg(journal)
                .arg(GROUP)
                .arg(idle)
                .ignore();
        }
        commands.exec_async(&mut self.connection).await
    }
}
