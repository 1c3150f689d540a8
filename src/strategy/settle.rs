//! From attempts to an answer: retries, replays, and commits in doubt.
//!
//! Neither spawns nor reads a clock of its own: all pauses go through the policy's sleep, so that
//! the tests can explore every interleaving.

use std::borrow::Cow;

use crate::retry::{Retry, RetryPolicy};
use crate::stock::{Deducted, Deduction, Durability, StockError};
use crate::store::{Attempt, Recorded, StockStore, StoreError};

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

/// Deducts under `strategy`, trying again until the outcome is settled or the policy is used up.
///
/// Every attempt carries the same operation id, and the ledger's unique index takes it once only.
/// So a commit in doubt is settled by executing again: if the first one did happen, or is still
/// happening, the index says so. (A look-up could not: the first transaction may still be open.)
///
/// # Errors
/// Everything but [`StockError::OutcomeUnknown`] means that nothing was deducted.
///
/// # Cancel safety
/// Dropping the future leaves the outcome open, like [`StockError::OutcomeUnknown`].
pub async fn settle(
    strategy: Strategy,
    protection: &Protection<'_>,
    deduction: &Deduction,
) -> Result<Deducted, StockError> {
    if let Some(reason) = strategy.unavailable() {
        let reason = reason.to_owned();
        return Err(StockError::StrategyUnavailable {
            strategy: strategy.name(),
            reason,
        });
    }
    let mut retry = protection.policy.start();
    let mut in_doubt = false;
    loop {
        let outcome = match attempt(strategy, protection, deduction).await {
            Ok(attempt) => conclude(attempt, protection.store, deduction, in_doubt).await,
            Err(error) => Err(error),
        };
        match outcome {
            Ok(Conclusion::Final(answer)) => return *answer,
            Ok(Conclusion::Again) | Err(StoreError::Conflict(_)) => {}
            Err(StoreError::OutcomeUnknown(_)) => in_doubt = true,
            Err(_) if in_doubt => {}
            Err(StoreError::LockWait(_)) => return Err(contended(&retry)),
            Err(error) => return Err(error.into()),
        }
        if !retry.again().await {
            return Err(if in_doubt {
                StockError::OutcomeUnknown
            } else {
                contended(&retry)
            });
        }
    }
}

/// What an attempt that the store carried out means.
enum Conclusion {
    /// It settles the request. (Boxed: answers are large, and few attempts are not final.)
    Final(Box<Result<Deducted, StockError>>),
    /// Others were faster; another attempt may succeed.
    Again,
}

impl Conclusion {
    fn last(answer: Result<Deducted, StockError>) -> Self {
        Self::Final(Box::new(answer))
    }
}

async fn conclude(
    attempt: Attempt,
    store: &dyn StockStore,
    deduction: &Deduction,
    in_doubt: bool,
) -> Result<Conclusion, StoreError> {
    Ok(match attempt {
        Attempt::Deducted { remaining } => Conclusion::last(Ok(first_answer(deduction, remaining))),
        Attempt::UnknownSku => Conclusion::last(Err(StockError::UnknownSku)),
        Attempt::Stale => Conclusion::Again,
        Attempt::Duplicate => match store.recorded(deduction).await? {
            Some(recorded) => Conclusion::last(replay(deduction, recorded)),
            None => Conclusion::Again,
        },
        Attempt::Insufficient { available } => {
            // The repeat of a request that took the last unit finds none left, so a refusal
            // counts only once the ledger does not have it.
            let may_be_repeat = in_doubt || deduction.idempotency.is_some();
            let recorded = if may_be_repeat {
                store.recorded(deduction).await?
            } else {
                None
            };
            let requested = deduction.quantity.units();
            Conclusion::last(match recorded {
                Some(recorded) => replay(deduction, recorded),
                None => Err(StockError::Insufficient {
                    requested,
                    available,
                }),
            })
        }
    })
}

fn first_answer(deduction: &Deduction, remaining: i64) -> Deducted {
    Deducted {
        operation: deduction.operation,
        sku: deduction.sku.clone(),
        warehouse: deduction.warehouse.clone(),
        quantity: deduction.quantity.units(),
        remaining,
        strategy: Cow::Borrowed(deduction.strategy),
        durability: Durability::Committed,
        replayed: false,
    }
}

/// The first answer once more, or the refusal of a key that was used for something else.
fn replay(deduction: &Deduction, recorded: Recorded) -> Result<Deducted, StockError> {
    let Recorded {
        movement,
        same_operation,
    } = recorded;
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
        replayed: !same_operation,
    })
}

fn contended(retry: &Retry<'_>) -> StockError {
    StockError::Contended {
        attempts: retry.attempts(),
        waited: retry.waited(),
    }
}
