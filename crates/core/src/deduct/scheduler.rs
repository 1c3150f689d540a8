//! The scheduler of `group-commit`: operations that wait at the same time share transactions.
//!
//! All operations of a replica wait here, except deductions of one line under a strategy that writes by
//! itself. [`Queues`] says which come next; rows of imports have batches of their own. While few levels
//! are claimed, a batch of one level is a write of its own, which can wait for its row. Any other batch
//! does not wait for rows. What meets a locked row, or cannot be decided with the others, is made
//! afterwards, level by level. An operation of several levels that missed a row waits for that row,
//! without a lock on another row and without a claim on its other levels. It is tried again before all
//! younger ones. After two misses it is alone in its batch, and waits briefly for its rows.
//!
//! Guarantees: a level has at most one batch in flight. Each operation gets its own answer. A caller who
//! leaves cancels nothing. If the task of a batch ends early, its operations have unknown outcomes, and
//! its levels are free again. An operation that waits for longer than the wait limit is refused as
//! overloaded, long before its deadline. How many wait is bounded by the
//! [`WritePool`](super::WritePool).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::{RetryPolicy, Sleep, SoldOut};
use crate::ports::{BatchAnswer, DeductionMetrics, Expiry, OperationStore, StoreError};
use crate::spawn::Spawn;
use crate::stock::Operation;
use crate::trace;
use claims::Claims;
use queues::{Caller, Queues};

mod claims;
mod queues;

/// The scheduler of one replica.
#[derive(Debug)]
pub struct Scheduler {
    store: Arc<dyn OperationStore>,
    spawn: Arc<dyn Spawn>,
    metrics: Arc<dyn DeductionMetrics>,
    sleep: Arc<dyn Sleep>,
    wait_limit: Duration,
    sold_out: Arc<SoldOut>,
    queues: Mutex<Queues>,
}

/// An answer, and the caller who waits for it.
type Answered = (oneshot::Sender<BatchAnswer>, BatchAnswer);

impl Scheduler {
    /// A scheduler whose batches run in tasks of `spawn`.
    pub fn new(
        store: Arc<dyn OperationStore>,
        policy: &RetryPolicy,
        spawn: Arc<dyn Spawn>,
        metrics: Arc<dyn DeductionMetrics>,
    ) -> Arc<Self> {
        let queues = Queues::new(store.max_batch(), store.max_in_flight());
        Arc::new(Self {
            store,
            spawn,
            metrics,
            sleep: Arc::clone(&policy.sleep),
            wait_limit: policy.wait_limit,
            sold_out: Arc::default(),
            queues: Mutex::new(queues),
        })
    }

    /// What the batches have found sold out.
    #[must_use]
    pub fn sold_out(&self) -> &Arc<SoldOut> {
        &self.sold_out
    }

    /// Makes one attempt at an operation, in one of the next batches.
    ///
    /// # Errors
    /// Every error but [`StoreError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future cancels nothing: the outcome is unknown then.
    pub async fn attempt(self: &Arc<Self>, operation: Operation) -> BatchAnswer {
        let deadline = operation.deadline;
        let answered = self.enqueue(operation);
        answered.await.unwrap_or_else(|_| Err(unanswered(deadline)))
    }

    /// Makes one attempt at each of several operations. They share a batch if they can.
    ///
    /// # Cancel safety
    /// As [`Scheduler::attempt`].
    pub async fn attempt_all(self: &Arc<Self>, operations: Vec<Operation>) -> Vec<BatchAnswer> {
        let enqueue = |one: Operation| (one.deadline, self.enqueue(one));
        let waiting: Vec<_> = operations.into_iter().map(enqueue).collect();
        let mut answers = Vec::with_capacity(waiting.len());
        for (deadline, answered) in waiting {
            answers.push(answered.await.unwrap_or_else(|_| Err(unanswered(deadline))));
        }
        answers
    }

    fn enqueue(self: &Arc<Self>, operation: Operation) -> oneshot::Receiver<BatchAnswer> {
        let (answer, answered) = oneshot::channel();
        let caller = Caller::new(answer);
        let is_start = {
            let mut queues = self.queues.lock();
            queues.push(operation, caller);
            queues.begin_start()
        };
        if is_start {
            // What comes until the task runs is in the same batch.
            let start = Start(Arc::clone(self));
            self.spawn.spawn(Box::pin(async move { drop(start) }));
        }
        answered
    }

    /// Starts every batch that can start.
    fn start(self: &Arc<Self>, mut queues: MutexGuard<'_, Queues>) {
        let mut batches = Vec::new();
        let mut late = Vec::new();
        if let Some(time) = Instant::now().checked_sub(self.wait_limit) {
            late.extend(std::iter::from_fn(|| queues.pop_ready_before(time)));
        }
        batches.extend(std::iter::from_fn(|| queues.take()));
        // The callers are woken, and tasks are started, without the mutex.
        drop(queues);
        for batch in batches {
            let lines = batch.operations.iter().map(|one| one.operation.lines.len());
            self.metrics.batch(lines.sum());
            let claims = Claims {
                scheduler: Arc::clone(self),
                levels: batch.levels,
                counts: batch.counts,
                of_rows: batch.of_rows,
                back: Vec::new(),
            };
            let waited = batch.operations.iter().map(|one| &one.caller.span);
            let span = trace::batch(waited);
            let making = claims.make_batch(batch.operations).instrument(span);
            self.spawn.spawn(Box::pin(making));
        }
        for waiting in late {
            let _ = waiting.caller.answer.send(Err(StoreError::Queued));
        }
    }
}

/// The task of the batch has ended without an answer. When the batch was sent is unknown, so no refusal is
/// definite.
fn unanswered(deadline: Instant) -> StoreError {
    let never = Expiry {
        at: i64::MAX,
        here: deadline,
    };
    StoreError::outcome_unknown("the task of the batch has ended").expiring(never)
}

/// Sends the answers. A caller that was cancelled no longer receives its own.
fn answer(answers: Vec<Answered>) {
    for (caller, answer) in answers {
        let _ = caller.send(answer);
    }
}

/// Dropped, it starts what can start.
#[derive(Debug)]
struct Start(Arc<Scheduler>);

impl Drop for Start {
    fn drop(&mut self) {
        let mut queues = self.0.queues.lock();
        queues.end_start();
        self.0.start(queues);
    }
}

#[cfg(test)]
mod tests;
