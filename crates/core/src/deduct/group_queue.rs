//! The deductions of `group-commit`: while a batch of a level is in flight, the next one gathers.
//!
//! Guarantees: at most one batch of a level is in flight, which uses one connection of the store. A
//! deduction that waits for longer than the wait limit is refused as overloaded, long before its
//! deadline. How many wait is bounded by the [`WritePool`](super::WritePool).

use std::sync::Arc;
use std::time::Duration;

use super::{RetryPolicy, Sleep, SoldOut};
use crate::batching::{BatchCall, Batches, Spawn};
use crate::ports::{AttemptOutcome, BatchAnswer, DeductionStore, Expiry, StoreError};
use crate::stock::{Deduction, Sku, Warehouse};

/// The queues of all levels, and which of these are sold out.
#[derive(Debug)]
pub struct GroupQueue {
    batches: Batches<GroupCommit>,
    sold_out: Arc<SoldOut>,
}

impl GroupQueue {
    /// Queues for the deductions of one replica, whose batches run in tasks of `spawn`.
    pub fn new(
        store: Arc<dyn DeductionStore>,
        policy: &RetryPolicy,
        spawn: Arc<dyn Spawn>,
    ) -> Self {
        let sold_out = Arc::<SoldOut>::default();
        let call = GroupCommit {
            store,
            sold_out: Arc::clone(&sold_out),
            sleep: Arc::clone(&policy.sleep),
            wait_limit: policy.wait_limit,
        };
        Self {
            batches: Batches::new(call, spawn),
            sold_out,
        }
    }

    /// What the batches have found sold out.
    #[must_use]
    pub fn sold_out(&self) -> &Arc<SoldOut> {
        &self.sold_out
    }

    /// Makes one attempt at a deduction, in the next batch of its level.
    ///
    /// # Cancel safety
    /// Dropping the future cancels nothing: the outcome is unknown then.
    pub(crate) async fn deduct(&self, deduction: &Deduction) -> Result<AttemptOutcome, StoreError> {
        let level = (deduction.sku.clone(), deduction.warehouse.clone());
        let answer = self.batches.run(level, deduction.clone()).await;
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
    sold_out: Arc<SoldOut>,
    sleep: Arc<dyn Sleep>,
    wait_limit: Duration,
}

impl BatchCall for GroupCommit {
    type Level = (Sku, Warehouse);
    type Job = Deduction;
    type Answer = BatchAnswer;

    /// Two would wait for the same row.
    const CALLS: usize = 1;

    fn batch_size(&self, waiting: usize) -> usize {
        waiting.min(MOST)
    }

    async fn call(&self, batch: &[Deduction]) -> Vec<BatchAnswer> {
        let sending = self.sold_out.sending(&batch[0]);
        let answers = self.store.deduct_all(batch, sending.was_sold_out).await;
        self.sold_out.answered(sending, &answers);
        answers
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
            // The call took the wait limit, and the next one may wait as long for the row.
            None | Some(Err(StoreError::LockWait(_))) => {
                (waited >= self.wait_limit / 2).then_some(Err(StoreError::Queued))
            }
            Some(_) => (waited >= self.wait_limit).then_some(Err(StoreError::Queued)),
        }
    }
}
