//! Batches concurrent deductions of a level into one call of the script.
//!
//! Redis then reads and writes the level once, and decides each deduction in the order of arrival.
//! Without contention, a call carries one deduction.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::capacity::Capacity;
use super::cluster::Node;
use super::errors::{Failed, is_connection_error};
use super::nodes::{Nodes, Server};
use super::scripts::{self, Answer};
use super::streams::PER_ENTRY;
use super::update::WriteRequest;
use super::writer::Writer;
use crate::StoreError;
use stocklock_core::batching::{BatchCall, Batches, TokioSpawn};
use stocklock_core::ports::Expiry;

/// The deductions that are made by a script.
#[derive(Debug)]
pub(super) struct ScriptBatches {
    nodes: Nodes,
    batches: Batches<ScriptCall>,
}

/// One call of the script.
#[derive(Debug)]
struct ScriptCall {
    writer: Writer,
    capacity: Arc<Capacity>,
}

/// What the deductions of one call have in common.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Together {
    /// The node that the call is sent to. They expire by its clock.
    node: Node,
    /// The key of the level.
    level: Arc<str>,
    /// What their movements have in common.
    common: Arc<str>,
    /// The length of their dedup buckets: they differ for operations with and without a key.
    bucket_length: i64,
}

impl ScriptBatches {
    pub(super) fn new(writer: Writer, capacity: Arc<Capacity>) -> Self {
        Self {
            nodes: writer.nodes.clone(),
            batches: Batches::new(ScriptCall { writer, capacity }, Arc::new(TokioSpawn)),
        }
    }

    /// Deducts the units in the next batch of their level, for a caller who is answered by `deadline`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the outcome is unknown.
    pub(super) async fn deduct(
        &self,
        request: Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let send = |server| self.deduct_on(server, Arc::clone(&request), deadline);
        self.nodes.on(request.keys.slot, send).await
    }

    async fn deduct_on(
        &self,
        server: Arc<Server>,
        request: Arc<WriteRequest>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let expiry = server.shared.expiry(deadline).await?;
        let level = Together {
            node: server.node.clone(),
            level: Arc::clone(&request.keys.level),
            common: Arc::clone(&request.common),
            bucket_length: request.keys.buckets.length,
        };
        match self.batches.run(level, (server, request, expiry)).await {
            Some(Ok(answer)) => Answer::parse(&answer),
            Some(Err(failed)) => Err(failed.writing().expiring(expiry)),
            None => Err(StoreError::outcome_unknown("the call was aborted").expiring(expiry)),
        }
    }
}

impl BatchCall for ScriptCall {
    type Level = Together;
    type Job = (Arc<Server>, Arc<WriteRequest>, Expiry);
    type Answer = Result<Value, Failed>;

    /// More calls would carry fewer deductions each, and cost Redis and this process more.
    const CALLS: usize = 1;

    fn batch_size<'a>(&self, waiting: impl ExactSizeIterator<Item = &'a Self::Job>) -> usize {
        waiting.len().min(PER_ENTRY.into())
    }

    async fn call(&self, batch: &[Self::Job]) -> Vec<Self::Answer> {
        let mut script = scripts::DEDUCT.prepare_invoke();
        let (server, first, _) = &batch[0];
        first.add_call(&mut script, self.capacity.movements());
        for (_, request, expiry) in batch {
            request.add_operation(&mut script);
            script.arg(-request.row.delta).arg(expiry.at);
        }
        match self.writer.run(server, &script).await {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(failed) => vec![Err(failed); batch.len()],
        }
    }

    /// The connection bounds each call.
    async fn patience(&self) {
        std::future::pending::<()>().await;
    }

    /// If there is no connection, or none became free, this fails all that wait. If the connection broke, or
    /// replicas did not answer, it fails those that have waited for half of the limit, because another call
    /// would take them past it.
    fn give_up(&self, waited: Duration, last: Option<&mut Self::Answer>) -> Option<Self::Answer> {
        let is_late = waited >= self.writer.nodes.limit() / 2;
        given_up(last?.as_ref().err()?, is_late).map(Err)
    }
}

/// The error of a deduction that is not sent because the call before it failed. `None` if it may wait.
fn given_up(last: &Failed, is_late: bool) -> Option<Failed> {
    match last {
        Failed::Exhausted => Some(Failed::Exhausted),
        Failed::NotSent(error) => Some(Failed::NotSent(error.clone())),
        Failed::Unanswered(error) if is_connection_error(error) && is_late => {
            Some(Failed::NotSent(error.clone()))
        }
        Failed::NotReplicated(error) if is_late => Some(Failed::NotSent(error.clone())),
        Failed::Unanswered(_) | Failed::NotReplicated(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::{ErrorKind, RedisError};

    use super::*;

    /// Goal: those that wait for a call without a connection do not wait for the next one too.
    #[test]
    fn waiting_deductions_are_given_up_with_a_definite_error() {
        let broken = || RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        let refused = || RedisError::from((ErrorKind::Client, "refused"));
        for is_late in [false, true] {
            let exhausted = given_up(&Failed::Exhausted, is_late);
            assert!(matches!(exhausted, Some(Failed::Exhausted)));
            let not_sent = given_up(&Failed::NotSent(broken()), is_late);
            assert!(matches!(not_sent, Some(Failed::NotSent(_))));
            assert!(given_up(&Failed::Unanswered(refused()), is_late).is_none());
            for last in [
                Failed::Unanswered(broken()),
                Failed::NotReplicated(refused()),
            ] {
                let given_up = given_up(&last, is_late);
                assert_eq!(given_up.is_some(), is_late, "{last:?}");
                assert!(matches!(given_up, None | Some(Failed::NotSent(_))));
            }
        }
    }
}
