//! One deduction under one strategy, from the first attempt to the answer.

use std::borrow::Cow;
use std::time::Duration;

use super::counters::Asked;
use super::{DeductionLock, Outcome, late_attempt, run_to_outcome};
use crate::ports::{
    AttemptOutcome, CounterMethod, Dependency, Expiry, LateAttempt, LockError, StoreError,
};
use crate::stock::{Deducted, Movement, StockError};
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
                let recorded = self.recorded().await?;
                return recorded.map_or(Err(refusal), |movement| self.replay(movement));
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
        let answer = match self.strategy.attempt(self).await? {
            AttemptOutcome::Deducted { remaining } => Ok(self.first_answer(remaining)),
            AttemptOutcome::UnknownSku => {
                return self.refuse(StockError::UnknownSku, unknown).await;
            }
            AttemptOutcome::Conflict => return Ok(Outcome::Retry),
            AttemptOutcome::Refused(refusal) => {
                return self.refuse(refusal.into(), unknown).await;
            }
            AttemptOutcome::Changed(_)
            | AttemptOutcome::Lines(_)
            | AttemptOutcome::Short { .. }
            | AttemptOutcome::RefusedLines(_) => Err(StockError::Internal {
                what: "a deduction takes units of one level".to_owned(),
            }),
            AttemptOutcome::LockLost => {
                self.release_lock().await;
                return Ok(Outcome::Retry);
            }
            // The ledger has it, so an error of this read is no refusal.
            AttemptOutcome::Duplicate => {
                match self.recorded().await.map_err(StoreError::outcome_unknown)? {
                    Some(movement) => self.replay(movement),
                    None => return Ok(Outcome::Retry),
                }
            }
            AttemptOutcome::Recorded(movement) => self.replay(*movement),
            AttemptOutcome::Insufficient { available } => {
                // The retry of a request that took the last unit finds none left. So a refusal is
                // definite only if the ledger does not have the operation.
                let may_be_recorded = unknown.is_some() || self.deduction.idempotency.is_some();
                if may_be_recorded && let Some(movement) = self.recorded().await? {
                    self.replay(movement)
                } else {
                    return self
                        .refuse(self.deduction.insufficient(available), unknown)
                        .await;
                }
            }
            AttemptOutcome::Unrecorded { available } => {
                return self
                    .refuse(self.deduction.insufficient(available), unknown)
                    .await;
            }
        };
        Ok(Outcome::Done(answer))
    }

    /// Refuses, if no earlier attempt was made or can still be made. Waits until they have expired.
    async fn refuse(
        &self,
        refusal: StockError,
        unknown: Option<Expiry>,
    ) -> Result<Outcome<Deducted>, StoreError> {
        let Some(expiry) = unknown else {
            return Ok(Outcome::Done(Err(refusal)));
        };
        let (store, policy) = (&*self.context.store, &self.context.policy);
        let late = late_attempt(store, policy, self.deduction, expiry);
        Ok(match late.await? {
            LateAttempt::Recorded(movement) => Outcome::Done(self.replay(*movement)),
            LateAttempt::Dead => Outcome::Done(Err(refusal)),
            LateAttempt::Alive => Outcome::Retry,
        })
    }

    async fn recorded(&self) -> Result<Option<Movement>, StoreError> {
        let (store, one) = (&self.context.store, self.deduction);
        let key = one.idempotency.as_ref();
        store.recorded(one.level().0, one.id, key).await
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

    /// The first answer again, rebuilt from the ledger; or the refusal of a key that was used for
    /// another request.
    fn replay(&self, movement: Movement) -> Result<Deducted, StockError> {
        let idempotency = self.deduction.idempotency.as_ref();
        if movement.request_hash != idempotency.map(|idempotency| idempotency.hash) {
            return Err(StockError::IdempotencyKeyReused);
        }
        Ok(Deducted {
            operation: movement.operation,
            sku: movement.sku,
            warehouse: movement.warehouse,
            quantity: -movement.delta,
            remaining: movement.available_after,
            strategy: movement.strategy.map_or(Cow::Borrowed(""), Cow::Owned),
            // If it is this very operation, this request is answered for the first time.
            replayed: movement.operation != self.deduction.id,
        })
    }
}
