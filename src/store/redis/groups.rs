//! The consumers' side of the journals: what is read there, by whom, and how it leaves.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::streams::{StreamAutoClaimReply, StreamReadReply};
use redis::{Pipeline, RedisResult, Value};

use super::entries::Entry;
use super::failure::connecting;
use super::keys::{Keys, SHARDS, Shard};
use super::{RedisStore, scripts};
use crate::store::StoreError;

/// The one group of each journal: its consumers share the entries.
pub(super) const GROUP: &str = "ledger";

/// How many entries of one journal are read at once.
const AT_ONCE: u32 = 256;

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
    /// Where each journal is to be looked through next for entries of others.
    cursors: Vec<String>,
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
            cursors: vec!["0-0".to_owned(); usize::from(SHARDS)],
        })
    }
}

impl Consumer<'_> {
    fn journals(&self) -> Vec<String> {
        Shard::all().map(|shard| self.keys.journal(shard)).collect()
    }

    /// Creates the groups, from each journal's beginning, where there are none.
    pub(super) async fn create_groups(&mut self) -> RedisResult<()> {
        let mut commands = redis::pipe();
        commands.ignore_errors();
        for journal in self.journals() {
            commands
                .cmd("XGROUP")
                .arg("CREATE")
                .arg(journal)
                .arg(GROUP)
                .arg("0")
                .arg("MKSTREAM");
        }
        let answers: Vec<RedisResult<Value>> = commands.query_async(&mut self.connection).await?;
        for answer in answers {
            match answer {
                Err(error) if error.code() != Some("BUSYGROUP") => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Entries that nobody has read yet; waits for one up to `wait`.
    pub(super) async fn read_new(&mut self, wait: Duration) -> RedisResult<Vec<Read>> {
        let journals = self.journals();
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

    /// Entries that another consumer read at least `idle` ago, and has not let depart.
    pub(super) async fn claim(&mut self, idle: Duration) -> RedisResult<Vec<Read>> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut commands = redis::pipe();
        for (journal, cursor) in self.journals().iter().zip(&self.cursors) {
            commands
                .cmd("XAUTOCLAIM")
                .arg(journal)
                .arg(GROUP)
                .arg(self.name)
                .arg(idle)
                .arg(cursor)
                .arg("COUNT")
                .arg(AT_ONCE);
        }
        let replies: Vec<StreamAutoClaimReply> = commands.query_async(&mut self.connection).await?;
        self.cursors = replies
            .iter()
            .map(|reply| reply.next_stream_id.clone())
            .collect();
        let of_shard = |(shard, reply): (Shard, StreamAutoClaimReply)| {
            let claimed = reply.claimed.into_iter();
            claimed.map(move |id| Read {
                shard,
                entry: Entry::of(id),
            })
        };
        Ok(Shard::all().zip(replies).flat_map(of_shard).collect())
    }

    /// Removes from the groups the names of consumers that were not heard of for so long.
    pub(super) async fn retire(&mut self, idle: Duration) -> RedisResult<()> {
        let idle = u64::try_from(idle.as_millis()).unwrap_or(u64::MAX);
        let mut commands = redis::pipe();
        for journal in self.journals() {
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

    /// How many entries wait in all journals together.
    pub(super) async fn waiting(&mut self) -> RedisResult<u64> {
        let mut commands: Pipeline = redis::pipe();
        for journal in self.journals() {
            commands.cmd("XLEN").arg(journal);
        }
        let lengths: Vec<u64> = commands.query_async(&mut self.connection).await?;
        Ok(lengths.into_iter().sum())
    }
}
