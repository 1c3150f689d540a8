//! The consumer groups of the journals: how a consumer finds journals, and reads and claims their
//! entries.
//!
//! The first write creates a journal. Consumers create only the group of an existing journal, so a
//! Redis without Redis-home stock stays empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamInfoGroupsReply, StreamReadReply};
use redis::{AsyncCommands, RedisResult};

use crate::StoreError;
use crate::redis::errors::{connecting, is_connection_error};
use crate::redis::keys::{Keys, Shard};
use crate::redis::streams::{StreamEntry, waiting_movements};
use crate::redis::{RedisStore, scripts};

/// The consumer group of each journal.
pub(super) const GROUP: &str = "ledger";

/// How many entries of one journal a consumer reads at once. It must be able to apply this many, each
/// with the maximum number of movements, before other consumers claim them.
pub(super) const AT_ONCE: usize = 32;

/// How long a consumer waits for new entries before it does its periodic work.
const WAIT_MILLIS: u64 = 250;

/// A consumer claims entries that another consumer read this long ago and has not acknowledged. If
/// the other one is only slow, both apply the entry, which is harmless.
const CLAIM_AFTER_MILLIS: u64 = 2_000;

/// A consumer that holds no entries and was idle for this long has ended. Its name is deleted.
const RETIRE_AFTER_MILLIS: u64 = 10_000;

/// The connection of one consumer. It sends blocking commands, so it must not be shared.
#[derive(Debug)]
pub(super) struct ConsumerConnection<'a> {
    connection: MultiplexedConnection,
    keys: &'a Keys,
    name: &'a str,
    /// The number of entries in each journal that existed at the last refresh.
    pub(super) entries: BTreeMap<Shard, u64>,
    /// The journals that have the group, each with the cursor for the next `XAUTOCLAIM`.
    cursors: BTreeMap<Shard, String>,
    /// Journals whose group could not be created. A warning was logged once for each.
    refused: BTreeSet<Shard>,
}

impl<'a> ConsumerConnection<'a> {
    pub(super) async fn open(store: &'a RedisStore, name: &'a str) -> Result<Self, StoreError> {
        let keys = store.keys_to_read().await?;
        let wait = Duration::from_millis(WAIT_MILLIS);
        let connection = store.connector.connect(wait).await.map_err(connecting)?;
        Ok(Self {
            connection,
            keys,
            name,
            entries: BTreeMap::new(),
            cursors: BTreeMap::new(),
            refused: BTreeSet::new(),
        })
    }

    /// Counts the entries, joins the groups of new journals, and returns how many movements wait in
    /// all journals.
    pub(super) async fn refresh(&mut self) -> RedisResult<u64> {
        let journals: Vec<_> = Shard::all().map(|shard| self.keys.journal(shard)).collect();
        let existing: u64 = self.connection.exists(&journals).await?;
        if existing == 0 {
            self.entries.clear();
            self.cursors.clear();
            return Ok(0);
        }
        let mut commands = redis::pipe();
        for (shard, journal) in Shard::all().zip(&journals) {
            commands.exists(journal).xlen(journal);
            commands.hget(self.keys.counters(shard), "waiting");
        }
        let found: Vec<(bool, u64, Option<String>)> =
            commands.query_async(&mut self.connection).await?;
        self.entries.clear();
        let mut waiting = 0;
        for (shard, (exists, entries, counted)) in Shard::all().zip(found) {
            if exists {
                self.entries.insert(shard, entries);
                waiting += waiting_movements(entries, counted.as_deref());
                self.join_group(shard).await?;
            }
        }
        self.cursors
            .retain(|shard, _| self.entries.contains_key(shard));
        Ok(waiting)
    }

    /// Creates the group of a journal at its first entry, unless it exists. If Redis refuses, the other
    /// journals can still be read, and a later refresh tries again.
    async fn join_group(&mut self, shard: Shard) -> RedisResult<()> {
        if self.cursors.contains_key(&shard) {
            return Ok(());
        }
        let journal = self.keys.journal(shard);
        // First, because a Redis that is out of memory refuses `XGROUP CREATE` even for an existing
        // group, and then the journals must be emptied.
        let found: StreamInfoGroupsReply = self.connection.xinfo_groups(&journal).await?;
        if !found.groups.iter().any(|group| group.name == GROUP) {
            let created: RedisResult<()> =
                self.connection.xgroup_create(&journal, GROUP, "0").await;
            // If the group is there now, another consumer created it.
            if let Err(error) = created
                && error.code() != Some("BUSYGROUP")
            {
                if is_connection_error(&error) {
                    return Err(error);
                }
                if self.refused.insert(shard) {
                    tracing::warn!(journal, %error, "the consumer group of a journal could not be created");
                }
                return Ok(());
            }
        }
        self.cursors.insert(shard, "0-0".to_owned());
        Ok(())
    }

    /// Reads entries that no consumer has read. If there are none and `wait` is true, waits for one.
    pub(super) async fn read_new(&mut self, wait: bool) -> RedisResult<Vec<StreamEntry>> {
        if self.cursors.is_empty() {
            if wait {
                tokio::time::sleep(Duration::from_millis(WAIT_MILLIS)).await;
            }
            return Ok(Vec::new());
        }
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(self.name);
        command.arg("COUNT").arg(AT_ONCE);
        if wait {
            command.arg("BLOCK").arg(WAIT_MILLIS);
        }
        command.arg("STREAMS").arg(self.journals());
        command.arg(vec![">"; self.cursors.len()]);
        let reply: Option<StreamReadReply> = command.query_async(&mut self.connection).await?;
        let mut read = Vec::new();
        for stream in reply.into_iter().flat_map(|reply| reply.keys) {
            let shard = Shard::all().find(|shard| self.keys.journal(*shard) == stream.key);
            let shard = shard.expect("the reply has only requested journals");
            read.extend(StreamEntry::parse_all(shard, stream.ids));
        }
        Ok(read)
    }

    /// Claims entries that other consumers have not acknowledged in time. It skips journals that were
    /// empty at the last refresh.
    pub(super) async fn claim(&mut self) -> RedisResult<Vec<StreamEntry>> {
        let mut commands = redis::pipe();
        let mut shards = Vec::new();
        for (shard, cursor) in &self.cursors {
            if self.entries.get(shard) == Some(&0) {
                continue;
            }
            let command = commands.cmd("XAUTOCLAIM").arg(self.keys.journal(*shard));
            command.arg(GROUP).arg(self.name).arg(CLAIM_AFTER_MILLIS);
            command.arg(cursor).arg("COUNT").arg(AT_ONCE);
            shards.push(*shard);
        }
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let replies: Vec<StreamAutoClaimReply> = commands.query_async(&mut self.connection).await?;
        let mut read = Vec::new();
        for (shard, reply) in shards.into_iter().zip(replies) {
            self.cursors.insert(shard, reply.next_stream_id);
            read.extend(StreamEntry::parse_all(shard, reply.claimed));
        }
        Ok(read)
    }

    /// Deletes the names of consumers that have ended.
    pub(super) async fn retire(&mut self) -> RedisResult<()> {
        if self.cursors.is_empty() {
            return Ok(());
        }
        let mut commands = redis::pipe();
        commands.load_script(&scripts::RETIRE);
        for journal in self.journals() {
            let mut script = scripts::RETIRE.key(journal);
            commands.invoke_script(script.arg(GROUP).arg(RETIRE_AFTER_MILLIS));
        }
        commands.exec_async(&mut self.connection).await
    }

    /// The keys of the journals that have the group.
    fn journals(&self) -> Vec<String> {
        let shards = self.cursors.keys();
        shards.map(|shard| self.keys.journal(*shard)).collect()
    }
}
