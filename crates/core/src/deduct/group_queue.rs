//! The deductions of `group-commit`, and of the strategies that ask Redis before it: while a batch of a level is in flight, the next one gathers.
//!
//! If more than a few levels are sold at the same time, their batches share transactions, which wait for
//! no row. A level whose row is locked, or that has too few units, is made alone afterwards.
//!
//! Guarantees: at most one batch of a level is in flight, which uses one connection of the store. A
//! deduction that waits for longer than the wait limit is refused as overloaded, long before its
//! deadline. How many wait is bounded by the [`WritePool`](super::WritePool).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::{RetryPolicy, Sleep, SoldOut};
use crate::batching::{BatchCall, Batches, Spawn};
use crate::ports::{AttemptOutcome, BatchAnswer, Expiry, OperationStore, StoreError};
use crate::stock::{Deduction, Operation, Sku, Warehouse};

/// The queues of all levels, and which of these are sold out.
#[derive(Debug)]
pub struct GroupQueue {
    batches: Batches<GroupCommit>,
    sold_out: Arc<SoldOut>,
}

impl GroupQueue {
    /// Queues for the deductions of one replica, whose batches run in tasks of `spawn`.
    pub fn new(
        store: Arc<dyn OperationStore>,
        policy: &RetryPolicy,
        spawn: Arc<dyn Spawn>,
    ) -> Self {
        let sold_out = Arc::<SoldOut>::default();
        let merged = Merged {
            store: Arc::clone(&store),
            sleep: Arc::clone(&policy.sleep),
            patience: policy.wait_limit / 8,
        };
        let call = GroupCommit {
            store,
            merged: Batches::new(merged, Arc::clone(&spawn)),
            sold_out: Arc::clone(&sold_out),
            in_flight: AtomicUsize::new(0),
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
        let Deduction {
            sku,
            warehouse,
            strategy,
            ..
        } = deduction;
        let level = (sku.clone(), warehouse.clone(), *strategy);
        let operation = Operation::from(deduction.clone());
        let answer = self.batches.run(level, operation).await;
        answer.unwrap_or_else(|| Err(unanswered(deduction.deadline)))
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

/// So many batches of different levels are made at the same time without others, each with one statement
/// that can wait for its row. More share transactions.
const ALONE: usize = 4;

/// The maximum number of deductions in a transaction of several levels.
const MAX_DEDUCTIONS: usize = 256;

/// The maximum number of levels in a transaction.
const MAX_LEVELS: usize = 128;

/// How a batch is made.
#[derive(Debug)]
struct GroupCommit {
    store: Arc<dyn OperationStore>,
    merged: Batches<Merged>,
    sold_out: Arc<SoldOut>,
    /// How many batches are in flight, or wait for a transaction with others.
    in_flight: AtomicUsize,
    sleep: Arc<dyn Sleep>,
    wait_limit: Duration,
}

impl GroupCommit {
    /// Alone, if few batches are in flight. Otherwise with batches of other levels, and alone only if it was
    /// left out of that transaction.
    async fn make(&self, batch: &[Operation], was_sold_out: bool) -> Vec<BatchAnswer> {
        let in_flight = InFlight::enter(&self.in_flight);
        if in_flight.others >= ALONE && !was_sold_out {
            let since = Instant::now();
            let strategy = batch[0].strategy.unwrap_or_default();
            match self.merged.run(strategy, batch.to_vec()).await {
                Some(Some(answers)) => return answers,
                Some(None) if since.elapsed() >= self.wait_limit / 2 => {
                    // To wait again for a connection and a row could take it past its deadline.
                    return batch.iter().map(|_| Err(StoreError::Queued)).collect();
                }
                Some(None) => {}
                None => {
                    return batch
                        .iter()
                        .map(|one| Err(unanswered(one.deadline)))
                        .collect();
                }
            }
        }
        self.store.write_batch(batch, was_sold_out).await
    }
}

/// Counts a batch until it is dropped.
struct InFlight<'a> {
    count: &'a AtomicUsize,
    /// How many others were in flight before.
    others: usize,
}

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        let others = count.fetch_add(1, Ordering::Relaxed);
        Self { count, others }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How batches of several levels are made in one transaction.
#[derive(Debug)]
struct Merged {
    store: Arc<dyn OperationStore>,
    sleep: Arc<dyn Sleep>,
    /// How long a transaction may take while batches wait for the next one.
    patience: Duration,
}

impl BatchCall for Merged {
    /// All levels of a strategy share one queue.
    type Level = &'static str;
    type Job = Vec<Operation>;
    /// `None` if the batch was not made.
    type Answer = Option<Vec<BatchAnswer>>;

    /// While the database commits one, it works on the other.
    const CALLS: usize = 2;

    fn batch_size<'a>(&self, waiting: impl ExactSizeIterator<Item = &'a Vec<Operation>>) -> usize {
        let mut deductions = 0;
        let fitting = waiting.take(MAX_LEVELS).take_while(|batch| {
            deductions += batch.len();
            deductions <= MAX_DEDUCTIONS
        });
        fitting.count().max(1)
    }

    async fn call(&self, batches: &[Vec<Operation>]) -> Vec<Self::Answer> {
        let all: Vec<_> = batches.iter().flatten().collect();
        let mut answers = self.store.write_levels(&all).await;
        let of_batch = |batch: &Vec<Operation>| {
            let own = answers.drain(..batch.len()).collect::<Vec<_>>();
            own.into_iter().collect()
        };
        batches.iter().map(of_batch).collect()
    }

    async fn patience(&self) {
        self.sleep.sleep(self.patience).await;
    }

    /// A transaction may take long because of one of its levels. The batches behind it need not wait.
    fn give_up(&self, waited: Duration, last: Option<&mut Self::Answer>) -> Option<Self::Answer> {
        (last.is_none() && waited >= self.patience / 2).then_some(None)
    }
}

impl BatchCall for GroupCommit {
    /// A batch has one strategy: its name is in the ledger.
    type Level = (Sku, Warehouse, &'static str);
    type Job = Operation;
    type Answer = BatchAnswer;

    /// Two would wait for the same row.
    const CALLS: usize = 1;

    fn batch_size<'a>(&self, waiting: impl ExactSizeIterator<Item = &'a Operation>) -> usize {
        waiting.len().min(self.store.max_batch())
    }

    async fn call(&self, batch: &[Operation]) -> Vec<BatchAnswer> {
        let sending = self.sold_out.sending(&batch[0]);
        let answers = self.make(batch, sending.was_sold_out).await;
        self.sold_out.answered(sending, &answers);
        answers
    }

    async fn patience(&self) {
        self.sleep.sleep(self.wait_limit).await;
    }

    fn give_up(&self, waited: Duration, last: Option<&mut BatchAnswer>) -> Option<BatchAnswer> {
        match last {
            // The next call may wait as long for the server.
            Some(Err(error @ StoreError::Unavailable(_))) if waited >= self.wait_limit / 2 => {
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

#[cfg(test)]
mod tests;
