//! One deduction under one strategy, from the first attempt to the answer.

use std::borrow::Cow;
use std::time::Duration;

use stocklock_locks::LockError;

use crate::metrics::Metrics;
use crate::retry::RetryPolicy;
use crate::settle::{Step, until_settled};
use crate::stock::{Deducted, Deduction, Durability, Movement, StockError};
use crate::store::{Attempt, StockStore, StoreError};

use super::{LocalMutexes, Locks, Safeguards, Strategy, Tenure, attempt};

/// How long a caller's answer may wait for the release of the lock to be confirmed.
const RELEASE_WAIT: Duration = Duration::from_millis(50);

/// What the strategies work with.
#[derive(Debug, Clone, Copy)]
pub struct Protection<'a> {
    /// Where the stock is.
    pub store: &'a dyn StockStore,
    /// This process's mutexes.
    pub mutexes: &'a LocalMutexes,
    /// The distributed locks that there are.
    pub locks: &'a Locks,
    /// What a lock strategy does about a lock that was lost.
    pub safeguards: Safeguards,
    /// How long and how often to try.
    pub policy: &'a RetryPolicy,
    /// Where refused writes are counted.
    pub metrics: &'a Metrics,
}

impl Protection<'_> {
    /// Deducts under `strategy`, trying again until the outcome is settled or the policy is used
    /// up.
    ///
    /// # Errors
    /// Everything but [`StockError::OutcomeUnknown`] means that nothing was deducted.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome open, like [`StockError::OutcomeUnknown`].
    pub async fn deduct(
        &self,
        strategy: Strategy,
        deduction: &Deduction,
    ) -> Result<Deducted, StockError> {
        if let Some(reason) = strategy.unavailable(self.locks.services()) {
            return Err(StockError::StrategyUnavailable {
                strategy: strategy.name(),
                reason,
                source: None,
            });
        }
        let lock = strategy.lock(self.locks);
        let tenure = lock.map(|lock| Tenure::of(deduction, lock));
        let answer = until_settled(self.policy, |in_doubt| {
            self.step(strategy, tenure.as_ref(), deduction, in_doubt)
        })
        .await;
        self.release(tenure.as_ref()).await;
        answer
    }

    async fn step(
        &self,
        strategy: Strategy,
        tenure: Option<&Tenure<'_>>,
        deduction: &Deduction,
        in_doubt: bool,
    ) -> Result<Step<Deducted>, StoreError> {
        if let Some(tenure) = tenure
            && let Err(error) = tenure.secure(self.limit(in_doubt)).await
        {
            return without_lock(strategy, tenure, error, in_doubt);
        }
        let attempt = attempt(strategy, self, tenure, deduction).await?;
        let recorded = || {
            let (sku, operation) = (&deduction.sku, deduction.operation);
            self.store
                .recorded(sku, operation, deduction.idempotency.as_ref())
        };
        Ok(match attempt {
            Attempt::Deducted { remaining } => {
                let answer = first_answer(deduction, remaining, Durability::Committed);
                Step::Final(Ok(answer))
            }
            Attempt::Journaled { remaining } => {
                let answer = first_answer(deduction, remaining, Durability::Redis);
                Step::Final(Ok(answer))
            }
            Attempt::WrongHome(home) => Step::Final(Err(StockError::WrongHome { home })),
            Attempt::UnknownSku => Step::Final(Err(StockError::UnknownSku)),
            Attempt::Stale => Step::Again,
            Attempt::LockLost => {
                self.release(tenure).await;
                Step::Again
            }
            Attempt::Duplicate => match recorded().await? {
                Some(movement) => Step::Final(replay(deduction, movement)),
                None => Step::Again,
            },
            Attempt::Insufficient { available } => {
                // The repeat of a request that took the last unit finds none left, so a refusal
                // counts only once the ledger does not have it.
                let may_be_repeat = in_doubt || deduction.idempotency.is_some();
                let recorded = if may_be_repeat {
                    recorded().await?
                } else {
                    None
                };
                let requested = deduction.quantity.units();
                Step::Final(match recorded {
                    Some(movement) => replay(deduction, movement),
                    None => Err(StockError::Insufficient {
                        requested,
                        available,
                    }),
                })
            }
        })
    }

    async fn release(&self, tenure: Option<&Tenure<'_>>) {
        if let Some(tenure) = tenure {
            tenure.end(self.policy.sleep.sleep(RELEASE_WAIT)).await;
        }
    }

    /// How long after its begin a deduction may still wait for a lock.
    fn limit(&self, in_doubt: bool) -> Duration {
        if in_doubt {
            self.policy.doubt_limit
        } else {
            self.policy.wait_limit
        }
    }

    /// Counts a conditional write that changed no row.
    pub(super) fn refused(&self, deduction: &Deduction, reason: &'static str) {
        self.metrics.locks.write_refused(deduction.strategy, reason);
    }
}

/// What to do where the lock could not be had. A commit in doubt stays in doubt.
fn without_lock(
    strategy: Strategy,
    tenure: &Tenure<'_>,
    error: LockError,
    in_doubt: bool,
) -> Result<Step<Deducted>, StoreError> {
    match error {
        LockError::WaitLimit { .. } => Err(StoreError::LockWait(error.into())),
        _ if in_doubt => Ok(Step::Again),
        _ => {
            let service = tenure.lock().service();
            let (title, variable) = (service.title(), service.variable());
            let what = match &error {
                LockError::Unavailable(error) if error.is_permanent() => "refuses; see the log",
                _ => "does not answer",
            };
            Ok(Step::Final(Err(StockError::StrategyUnavailable {
                strategy: strategy.name(),
                reason: format!("{title}, which {variable} names, {what}"),
                source: Some(error.into()),
            })))
        }
    }
}

fn first_answer(deduction: &Deduction, remaining: i64, durability: Durability) -> Deducted {
    Deducted {
        operation: deduction.operation,
        sku: deduction.sku.clone(),
        warehouse: deduction.warehouse.clone(),
        quantity: deduction.quantity.units(),
        remaining,
        strategy: Cow::Borrowed(deduction.strategy),
        durability,
        replayed: false,
    }
}

/// The first answer once more, or the refusal of a key that was used for something else.
fn replay(deduction: &Deduction, movement: Movement) -> Result<Deducted, StockError> {
    let asked = deduction
        .idempotency
        .as_ref()
        .map(|idempotency| idempotency.hash);
    if movement.request_hash != asked {
        return Err(StockError::IdempotencyKeyReused);
    }
    Ok(Deducted {
        operation: movement.operation,
        sku: movement.sku,
        warehouse: movement.warehouse,
        quantity: -movement.delta,
        remaining: movement.available_after,
        strategy: movement.strategy.map_or(Cow::Borrowed(""), Cow::Owned),
        durability: movement.durability,
        // This very operation, whose commit was in doubt, is answered for the first time.
        replayed: movement.operation != deduction.operation,
    })
}
