//! One deduction under one strategy, from the first attempt to the answer.

use std::borrow::Cow;

use crate::retry::RetryPolicy;
use crate::settle::{Step, until_settled};
use crate::stock::{Deducted, Deduction, Durability, Movement, StockError};
use crate::store::{Attempt, StockStore, StoreError};

use super::{LocalMutexes, Strategy, attempt};

/// What the strategies work with.
#[derive(Debug, Clone, Copy)]
pub struct Protection<'a> {
    /// Where the stock is.
    pub store: &'a dyn StockStore,
    /// This process's mutexes.
    pub mutexes: &'a LocalMutexes,
    /// How long and how often to try.
    pub policy: &'a RetryPolicy,
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
        if let Some(reason) = strategy.unavailable() {
            let reason = reason.to_owned();
            return Err(StockError::StrategyUnavailable {
                strategy: strategy.name(),
                reason,
            });
        }
        until_settled(self.policy, |in_doubt| {
            self.step(strategy, deduction, in_doubt)
        })
        .await
    }

    async fn step(
        &self,
        strategy: Strategy,
        deduction: &Deduction,
        in_doubt: bool,
    ) -> Result<Step<Deducted>, StoreError> {
        let attempt = attempt(strategy, self, deduction).await?;
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
