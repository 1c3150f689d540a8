//! The deductions of `group-commit`: while a batch of a level is in flight, the next one gathers.
//!
//! Guarantees: at most one batch of a level is in flight, which uses one connection of the store. A
//! deduction that waits for longer than the wait limit is refused as overloaded, long before its
//! deadline. How many wait is bounded by the [`WritePool`](super::WritePool).

use std::sync::Arc;
use std::time::Duration;

use super::{RetryPolicy, Sleep};
use crate::batching::{BatchCall, Batches, Spawn};
use crate::ports::{AttemptOutcome, BatchAnswer, DeductionStore, Expiry, StoreError};
use crate::stock::{Deduction, Sku, Warehouse};

/// The queues of all levels.
#[derive(Debug)]
pub struct GroupQueue(Batches<GroupCommit>);

impl GroupQueue {
    /// Queues for the deductions of one replica, whose batches run in tasks of `spawn`.
    pub fn new(
        store: Arc<dyn DeductionStore>,
        policy: &RetryPolicy,
        spawn: Arc<dyn Spawn>,
    ) -> Self {
        let call = GroupCommit {
            store,
            sleep: Arc::clone(&policy.sleep),
            wait_limit: policy.wait_limit,
        };
        Self(Batches::new(call, spawn))
    }

    /// Makes one attempt at a deduction, in the next batch of its level.
    ///
    /// # Cancel safety
    /// Dropping the future cancels nothing: the outcome is unknown then.
    pub(crate) async fn deduct(&self, deduction: &Deduction) -> Result<AttemptOutcome, StoreError> {
        let level = (deduction.sku.clone(), deduction.warehouse.clone());
        let answer = self.0.run(level, deduction.clone()).await;
        answer.unwrap_or_else(|| {
            // Nobody knows when the batch was sent, so no refusal is definite.
            let never = Expiry {
                at: i64::MAX,
                here: deduction.deadline,
            };
            Err(StoreError::outcome_unknown("the batch was aborted").expiring(never))
        })
    }
}

/// The maximum number of deductions in a batch.
const MOST: usize = 256;

/// How a batch is made.
#[derive(Debug)]
struct GroupCommit {
    store: Arc<dyn DeductionStore>,
    sleep: Arc<dyn Sleep>,
    wait_limit: Duration,
}

impl BatchCall for GroupCommit {
    type Level = (Sku, Warehouse);
    type Job = Deduction;
    type Answer = BatchAnswer;

    /// Two would conflict with each other.
    const CALLS: usize = 1;

    fn batch_size(&self, waiting: usize) -> usize {
        waiting.min(MOST)
    }

    async fn call(&self, batch: &[Deduction]) -> Vec<BatchAnswer> {
        self.store.deduct_all(batch, false).await
    }

    async fn patience(&self) {
        self.sleep.sleep(self.wait_limit).await;
    }

    fn give_up(&self, waited: Duration, last: Option<&mut BatchAnswer>) -> Option<BatchAnswer> {
        match last {
            // The next call may wait as long for the server.
            Some(Err(error @ StoreError::Unavailable(..))) if waited >= self.wait_limit / 2 => {
                Some(Err(error.share()))
            }
            Some(_) => (waited >= self.wait_limit).then_some(Err(StoreError::Queued)),
            // The call itself has taken the wait limit.
            None => (waited >= self.wait_limit / 2).then_some(Err(StoreError::Queued)),
        }
    }
}
