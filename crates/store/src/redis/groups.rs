//! The consumers' side of the journals: what is read there, by whom, and how it leaves.
//!
//! A journal is there from its first entry on, and consumers create nothing but the group of one
//! that is there: a Redis on which nothing is sold stays empty.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamInfoGroupsReply, StreamReadReply};

use super::entries::{Entry, waiting_movements};
use super::failure::{connecting, is_of_the_connection};
use super::keys::{Keys, Shard};
use super::{RedisStore, scripts};
use crate::StoreError;

/// The one group of each journal: its consumers share the entries.
pub(super) const GROUP: &str = "ledger";

/// How many entries of one journal are read at once: not more than are recorded before others would
/// take them for those of a consumer that is dead, though each be as long as it may.
pub(super) const AT_ONCE: usize = 32;

/// An entry and the journal that it stands in.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) shard: Shard,
    pub(super) entry: Entry,
}

/// One consumer's connection: it waits for entries, so nobody else may use it.
#[derive(Debug)]
pub(super) struct Consumer<'a> {
    connection: MultiplexedConnection,
    keys: &'a Keys,
    name: &'a str,
    /// The journals that are there, and how many movements they had when they were last looked at.
    waiting: BTreeMap<Shard, u64>,
    /// How many entries all of them had then.
    pub(super) entries: usize,
    /// Those of them that have the group, and where each is to be looked through next for entries of
    /// others.
    cursors: BTreeMap<Shard, String>,
    /// Those that were to get it, and did not: it is said once.
    refused: BTreeSet<Shard>,
}

impl RedisStore {
    /// A consumer that may wait for entries so long.
    pub(super) async fn consumer<'a>(
        &'a self,
        name: &'a str,
        wait: Duration,
    ) -> Result<Consumer<'a>, StoreError> {
        let keys = self.keys().await?;
        let connection = self
            .connector
            .patient(wait)
            .connect()
            .await
            .map_err(connecting)?;
        Ok(Consumer {
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

impl Consumer<'_> {
    /// The names of the journals that can be read.
    fn journals(&self) -> Vec<String> {
        let shards = self.cursors.keys();
        shards.map(|shard| self.keys.journal(*shard)).collect()
    }

    /// Looks which journals are there, and how many movements wait in all of them together. One that
    /// was not there before can be read from then on.
    pub(super) async fn look(&mut self) -> RedisResult<u64> {
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
            let tally = self.keys.tally(*shard);
            commands.cmd("HGET").arg(tally).arg("waiting");
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
        self.join(&new).await
    }

    /// Makes these journals readable. Their groups are looked for first: to create one that exists is
    /// refused by a Redis out of memory, where the journals must all the more be emptied.
    async fn join(&mut self, new: &[Shard]) -> RedisResult<()> {
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

    /// Creates the group, from the journal's beginning; answers whether it is there. Where that is
    /// refused, the other journals can be read all the same, and this one when it is not.
    async fn create_group(&mut self, shard: Shard) -> RedisResult<bool> {
        let journal = self.keys.journal(shard);
        let mut command = redis::cmd("XGROUP");
        command.arg("CREATE").arg(&journal).arg(GROUP).arg("0");
        match command.exec_async(&mut self.connection).await {
            Err(error) if is_of_the_connection(&error) => Err(error),
            // Another consumer was faster.
            Err(error) if error.code() == Some("BUSYGROUP") => Ok(true),
            Err(error) => {
                if self.refused.insert(shard) {
                    tracing::warn!(journal, %error, "the ledger cannot follow this journal yet");
                }
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    }

    /// Entries that nobody has read yet; waits for one up to `wait`.
    pub(super) async fn read_new(&mut self, wait: Duration) -> RedisResult<Vec<Read>> {
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
            let shard = shard.expect("an answer is to what was asked");
            read.extend(stream.ids.into_iter().map(|id| Read {
                shard,
                entry: Entry::of(id),
            }));
        }
        Ok(read)
    }

    /// Entries that another consumer read at least `idle` ago, and has not let depart; in journals
    /// that had entries when they were last looked at.
    pub(super) async fn claim(&mut self, idle: Duration) -> RedisResult<Vec<Read>> {
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
            read.extend(reply.claimed.into_iter().map(|id| Read {
                shard,
                entry: Entry::of(id),
            }));
        }
        Ok(read)
    }

    /// Removes from the groups the names of consumers that were not heard of for so long.
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
