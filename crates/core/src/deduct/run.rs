//! One deduction under one strategy, from the first attempt to the answer.

use std::borrow::Cow;
use std::time::Duration;

use super::counters::Asked;
use super::{DeductionLock, Outcome, run_to_outcome};
use crate::level_service::{Changed, settle};
use crate::ports::{AttemptOutcome, CounterMethod, Dependency, Expiry, LockError, StoreError};
use crate::stock::{Deducted, StockError};
use crate::strategy::{DeductionContext, DeductionRun};

/// How long the answer may wait for the confirmation that the lock was released.
const RELEASE_WAIT: Duration = Duration::from_millis(50);

impl DeductionRun<'_> {
    /// Makes attempts until the outcome is known or the policy's bounds are reached.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was deducted.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the outcome unknown.
    pub async fn run(mut self) -> Result<Deducted, StockError> {
        if let Some(reason) = self.context.available.why_not(self.strategy) {
            return Err(StockError::StrategyUnavailable {
                strategy: self.strategy.name(),
                reason,
                source: None,
            });
        }
        match self.strategy.asks() {
            Some(method) => self.run_behind_counter(method).await,
            None => self.run_to_outcome().await,
        }
    }

    async fn run_to_outcome(&self) -> Result<Deducted, StockError> {
        let policy = &self.context.policy;
        let answer = run_to_outcome(policy, |unknown| self.attempt(unknown)).await;
        self.release_lock().await;
        answer
    }

    /// Asks the counter once, before the first attempt. Later attempts do not ask again, because the
    /// first one may have sold.
    async fn run_behind_counter(&mut self, method: CounterMethod) -> Result<Deducted, StockError> {
        let DeductionContext {
            store,
            policy,
            metrics,
            counters,
            ..
        } = self.context;
        let counters = counters.as_ref().expect("the strategy is available");
        let asking = counters.ask(self.deduction, method, &**store, policy, &**metrics);
        let asked = match asking.await? {
            Asked::Refused(refusal) if self.deduction.idempotency.is_none() => return Err(refusal),
            // A replay, or the refusal: without a counter there is no level to set.
            Asked::Refused(refusal) if method == CounterMethod::GetSet => {
                return match self.settle((AttemptOutcome::Conflict, true), None).await? {
                    Outcome::Done(replay) => replay,
                    Outcome::Retry => Err(refusal),
                };
            }
            asked => asked,
        };
        self.asked = Some(asked);
        let answer = self.run_to_outcome().await;
        if let Some(asked) = &self.asked {
            counters.answered(self.deduction, asked, &answer).await;
        }
        answer
    }

    /// One attempt. `unknown`: when the earlier attempts expire whose outcome is unknown.
    async fn attempt(&self, unknown: Option<Expiry>) -> Result<Outcome<Deducted>, StoreError> {
        if let Some(lock) = &self.lock
            && let Err(error) = lock.acquire(self.lock_limit(unknown.is_some())).await
        {
            return self.without_lock(lock, error, unknown.is_some());
        }
        let outcome = self.strategy.attempt(self).await?;
        let asks = match outcome {
            AttemptOutcome::Deducted { remaining } => {
                return Ok(Outcome::Done(Ok(self.first_answer(remaining))));
            }
            AttemptOutcome::LockLost => {
                self.release_lock().await;
                false
            }
            // The retry of a request that took the last unit finds none left. So a refusal is
            // definite only if the ledger does not have the operation.
            AttemptOutcome::Insufficient { .. } => {
                unknown.is_some() || self.deduction.idempotency.is_some()
            }
            _ => false,
        };
        self.settle((outcome, asks), unknown).await
    }

    async fn settle(
        &self,
        outcome: (AttemptOutcome, bool),
        unknown: Option<Expiry>,
    ) -> Result<Outcome<Deducted>, StoreError> {
        let (store, policy) = (&*self.context.store, &self.context.policy);
        let settled = settle(store, policy, self.deduction, outcome, unknown);
        Ok(match settled.await? {
            Outcome::Done(made) => Outcome::Done(made.map(replayed)),
            Outcome::Retry => Outcome::Retry,
        })
    }

    async fn release_lock(&self) {
        if let Some(lock) = &self.lock {
            lock.release(self.context.policy.sleep.sleep(RELEASE_WAIT))
                .await;
        }
    }

    /// How long after its start a deduction may still wait for a lock.
    fn lock_limit(&self, unknown: bool) -> Duration {
        if unknown {
            self.context.policy.unknown_outcome_limit
        } else {
            self.context.policy.wait_limit
        }
    }

    /// What to do if the lock was not acquired. An unknown outcome stays unknown.
    fn without_lock(
        &self,
        lock: &DeductionLock<'_>,
        error: LockError,
        unknown: bool,
    ) -> Result<Outcome<Deducted>, StoreError> {
        let server = lock.lock();
        let problem = match &error {
            LockError::WaitLimit(_) => return Err(StoreError::LockWait(error.into())),
            _ if unknown => return Ok(Outcome::Retry),
            LockError::Refused(_) => "refuses; see the log",
            // Without the database no strategy works.
            LockError::Unavailable(_) if server.dependency() == Dependency::Database => {
                return Err(StoreError::Unavailable(error.into()));
            }
            LockError::Unavailable(_) => "does not answer",
        };
        let (title, variable) = (server.dependency().title(), server.variable());
        Ok(Outcome::Done(Err(StockError::StrategyUnavailable {
            strategy: self.strategy.name(),
            reason: format!("{title}, which {variable} names, {problem}"),
            source: Some(error.into()),
        })))
    }

    fn first_answer(&self, remaining: i64) -> Deducted {
        let (sku, warehouse) = self.deduction.owned_level();
        Deducted {
            operation: self.deduction.id,
            sku,
            warehouse,
            quantity: self.deduction.units(),
            remaining,
            strategy: Cow::Borrowed(self.strategy.name()),
            replayed: false,
        }
    }
}

/// The first answer again.
fn replayed(made: Changed) -> Deducted {
    let (operation, replayed) = (made.operation, made.replayed);
    let strategy = made.strategy.clone();
    let line = made.only_line();
    Deducted {
        operation,
        sku: line.sku,
        warehouse: line.warehouse,
        quantity: -line.delta,
        remaining: line.remaining,
        strategy: strategy.map_or(Cow::Borrowed(""), Cow::Owned),
        replayed,
    }
}
