//! The leases of the journals. While a consumer has the lease of a journal, no other consumer applies
//! its entries.
//!
//! A consumer takes leases for one batch, and renews them until the batch is done. If it dies or hangs,
//! its leases end soon. If it goes on after that, another consumer may apply the same entries, which the
//! ledger records once.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::streams::StreamRangeReply;

use super::portions::Portion;
use crate::StoreError;
use crate::redis::errors::{Failed, is_redirected};
use crate::redis::keys::{Keys, Shard};
use crate::redis::nodes::{Nodes, Server};
use crate::redis::scripts;
use crate::redis::streams::{Source, StreamEntry};
use crate::sql::BoundRedis;

/// How long a lease lasts after it was taken or renewed.
const LEASE: Duration = Duration::from_secs(3);

/// Several times within a lease, so that a delay does not end it.
const RENEW_EVERY: Duration = Duration::from_millis(750);

/// What became of the entries of a batch. Those that are not listed stay in their stream.
#[derive(Debug)]
pub(super) struct Done<'a> {
    /// The Redis that they were read from.
    pub(super) from: BoundRedis,
    /// SQL has them.
    pub(super) applied: Vec<&'a StreamEntry>,
    /// To set aside, each with the reason.
    pub(super) refused: Vec<(&'a StreamEntry, String)>,
}

impl Done<'_> {
    pub(super) fn new(from: BoundRedis) -> Self {
        Self {
            from,
            applied: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.applied.len() + self.refused.len()
    }

    pub(super) fn len_of(&self, shard: Shard) -> usize {
        let refused = self.refused.iter().map(|(read, _)| read);
        let done = self.applied.iter().chain(refused);
        done.filter(|read| read.shard == shard).count()
    }
}

/// The leases for one batch.
#[derive(Debug)]
pub(super) struct Leases<'a> {
    nodes: &'a Nodes,
    keys: &'a Keys,
    source: Source,
    /// Unique per batch. After Redis has lost a lease, a later one of the same consumer differs.
    token: String,
    shards: Vec<Shard>,
}

impl<'a> Leases<'a> {
    pub(super) fn new(nodes: &'a Nodes, keys: &'a Keys, source: Source, token: String) -> Self {
        Self {
            nodes,
            keys,
            source,
            token,
            shards: Vec::new(),
        }
    }

    /// Takes the lease of each shard, and reads its entries. `None` if another consumer has the lease,
    /// the slot moves, or the request failed. Returns also the last error. Fails if no lease was taken and one request
    /// failed.
    pub(super) async fn take(
        &mut self,
        portions: &[Portion],
    ) -> Result<(Vec<Option<Vec<StreamEntry>>>, Option<StoreError>), StoreError> {
        let take = async |portion: &Portion| {
            let shard = portion.shard;
            let mut script = scripts::TAKE.key(self.keys.lease(shard));
            script
                .key(self.keys.stream(self.source, shard))
                .arg(&self.token)
                .arg(LEASE.as_millis())
                .arg(&portion.start)
                .arg(portion.count);
            let script = &script;
            let run = |server: Arc<Server>| async move {
                server.shared.run(script).await.map_err(Failed::writing)
            };
            let taken: Option<StreamRangeReply> =
                match self.nodes.once_on(self.keys.slot(shard), run).await {
                    Err(error) if is_redirected(&error) => return Ok(None),
                    taken => taken?,
                };
            let parse = |reply: StreamRangeReply| {
                StreamEntry::parse_all(shard, self.source, reply.ids).collect::<Vec<_>>()
            };
            Ok(taken.map(parse))
        };
        let taken = join_all(portions.iter().map(take)).await;
        let mut failed = None;
        let mut entries = |taken: Result<_, StoreError>| {
            taken.unwrap_or_else(|error| {
                failed = Some(error);
                None
            })
        };
        let taken: Vec<Option<Vec<_>>> = taken.into_iter().map(&mut entries).collect();
        let held = portions.iter().zip(&taken);
        let held = held.filter_map(|(portion, entries)| entries.as_ref().map(|_| portion.shard));
        self.shards = held.collect();
        match failed {
            Some(error) if self.shards.is_empty() => Err(error),
            failed => Ok((taken, failed)),
        }
    }

    /// Renews the leases until `work` is done.
    pub(super) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            never = self.renew() => match never {},
        }
    }

    async fn renew(&self) -> Infallible {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            let renew = async |shard: &Shard| {
                let mut script = scripts::RENEW.key(self.keys.lease(*shard));
                script.arg(&self.token).arg(LEASE.as_millis());
                self.nodes.run::<()>(self.keys.slot(*shard), &script).await
            };
            for error in join_all(self.shards.iter().map(renew))
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                // The end of the batch finds out whether a lease was lost.
                tracing::debug!(%error, "the lease of a journal could not be renewed");
            }
        }
    }

    /// Removes and sets aside what is done, and gives the leases back.
    pub(super) async fn end(self, done: &Done<'_>) -> Result<(), StoreError> {
        let end = async |shard: &Shard| {
            let applied = || done.applied.iter().filter(|read| read.shard == *shard);
            let mut script = scripts::ACK.key(self.keys.stream(self.source, *shard));
            script
                .key(self.keys.counters(*shard))
                .key(self.keys.lease(*shard))
                .key(self.keys.stream(Source::Rejected, *shard))
                .arg(&self.token)
                .arg(applied().count());
            for read in applied() {
                script.arg(&read.id).arg(read.counted());
            }
            for (read, reason) in done.refused.iter().filter(|(read, _)| read.shard == *shard) {
                script.arg(&read.id).arg(read.counted()).arg(reason);
            }
            self.nodes.run::<()>(self.keys.slot(*shard), &script).await
        };
        let ended = join_all(self.shards.iter().map(end)).await;
        ended.into_iter().collect()
    }
}
