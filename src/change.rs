//! Changes of a level that are not sales, from the first attempt to the answer.

use std::sync::Arc;

use crate::operations::Operations;
use crate::retry::RetryPolicy;
use crate::settle::{Step, until_settled};
use crate::stock::{
    Adjustment, Idempotency, LevelChange, Movement, OperationId, StockError, StockLevel,
};
use crate::store::{Change, StockStore, StoreError};

/// A level that was set.
#[derive(Debug)]
pub struct LevelSet {
    /// The level as it is now.
    pub level: StockLevel,
    /// Whether there was none before.
    pub created: bool,
}

/// An adjustment that took place; for a repeat, the first one's answer.
#[derive(Debug)]
pub struct Adjusted {
    /// The operation that made it.
    pub operation: OperationId,
    /// Units added.
    pub delta: i64,
    /// Units that were available right after it.
    pub remaining: i64,
    /// Whether this answers a repeat of an earlier request.
    pub replayed: bool,
}

/// Makes changes of levels, each in a task of its own.
#[derive(Debug, Clone)]
pub struct LevelChanges {
    store: Arc<dyn StockStore>,
    policy: RetryPolicy,
    operations: Operations,
}

impl LevelChanges {
    /// Changes that count among `operations`.
    #[must_use]
    pub fn new(store: Arc<dyn StockStore>, policy: RetryPolicy, operations: Operations) -> Self {
        Self {
            store,
            policy,
            operations,
        }
    }

    /// Sets a level, creating it where there is none.
    ///
    /// # Errors
    /// Everything but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the change.
    pub async fn set_level(&self, change: LevelChange) -> Result<LevelSet, StockError> {
        let Self {
            store,
            policy,
            operations,
        } = self.clone();
        let slot = operations.admit()?;
        operations
            .run(slot, async move {
                until_settled(&policy, |in_doubt| {
                    set_level_once(&*store, &change, in_doubt)
                })
                .await
            })
            .await
    }

    /// Adds to or takes from a level.
    ///
    /// # Errors
    /// Everything but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the adjustment.
    pub async fn adjust(&self, adjustment: Adjustment) -> Result<Adjusted, StockError> {
        let Self {
            store,
            policy,
            operations,
        } = self.clone();
        let slot = operations.admit()?;
        operations
            .run(slot, async move {
                until_settled(&policy, |in_doubt| {
                    adjust_once(&*store, &adjustment, in_doubt)
                })
                .await
            })
            .await
    }
}

async fn set_level_once(
    store: &dyn StockStore,
    change: &LevelChange,
    in_doubt: bool,
) -> Result<Step<LevelSet>, StoreError> {
    let outcome = store.set_level(change).await?;
    if let Change::Done { level, created } = outcome {
        return Ok(Step::Final(Ok(LevelSet { level, created })));
    }
    // An earlier attempt that did happen is in the way of its own repeat: it moved the revision.
    if in_doubt || outcome == Change::Duplicate {
        let recorded = store.recorded(&change.sku, change.operation, None).await?;
        let level = store.level(&change.sku, &change.warehouse).await?;
        if let (Some(_), Some(level)) = (recorded, level) {
            return Ok(Step::Final(Ok(LevelSet {
                level,
                created: false,
            })));
        }
    }
    Ok(refusal(&outcome, 0))
}

async fn adjust_once(
    store: &dyn StockStore,
    adjustment: &Adjustment,
    in_doubt: bool,
) -> Result<Step<Adjusted>, StoreError> {
    let Adjustment {
        operation,
        delta,
        ref idempotency,
        ..
    } = *adjustment;
    let outcome = store.adjust(adjustment).await?;
    if let Change::Done { level, .. } = outcome {
        let remaining = level.available();
        return Ok(Step::Final(Ok(Adjusted {
            operation,
            delta,
            remaining,
            replayed: false,
        })));
    }
    // The repeat of an adjustment that took the last units finds none left.
    let recorded = if in_doubt || idempotency.is_some() || outcome == Change::Duplicate {
        let sku = &adjustment.sku;
        store.recorded(sku, operation, idempotency.as_ref()).await?
    } else {
        None
    };
    Ok(match recorded {
        Some(movement) => Step::Final(replay(operation, idempotency.as_ref(), &movement)),
        None => refusal(&outcome, -delta),
    })
}

fn replay(
    operation: OperationId,
    idempotency: Option<&Idempotency>,
    movement: &Movement,
) -> Result<Adjusted, StockError> {
    if movement.request_hash != idempotency.map(|idempotency| idempotency.hash) {
        return Err(StockError::IdempotencyKeyReused);
    }
    Ok(Adjusted {
        operation: movement.operation,
        delta: movement.delta,
        remaining: movement.available_after,
        replayed: movement.operation != operation,
    })
}

/// What a change that was not made is answered with; `requested` units were to be taken.
fn refusal<T>(outcome: &Change, requested: i64) -> Step<T> {
    Step::Final(Err(match *outcome {
        Change::Done { .. } | Change::Duplicate | Change::Stale => return Step::Again,
        Change::UnknownSku => StockError::UnknownSku,
        Change::PreconditionFailed => StockError::PreconditionFailed,
        Change::WrongHome(home) => StockError::WrongHome { home },
        Change::BelowLimit { available } if requested > 0 => StockError::Insufficient {
            requested,
            available,
        },
        Change::BelowLimit { .. } => StockError::BelowLimit,
        Change::TooLarge => StockError::TooLarge,
    }))
}
