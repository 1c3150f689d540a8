//! Changes of a level that are not sales, from the first attempt to the answer.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::deduct::{Counters, Outcome, RetryPolicy, SoldOut, WritePool, run_to_outcome};
use crate::ports::{AttemptOutcome, CachedLevels, ChangedLevel, OperationStore, StoreError};
use crate::stock::{
    Adjustment, Change, LevelChange, Movement, MovementKind, Operation, OperationId, Quantity,
    Reversal, Sku, StockError, StockLevel, Warehouse,
};

/// How long the answer may wait until the counter in Redis is deleted.
const DELETE_WAIT: Duration = Duration::from_millis(50);

/// A level that was set.
#[derive(Debug)]
pub struct LevelSet {
    /// The level after the change.
    pub level: StockLevel,
    /// Whether the change created the level.
    pub created: bool,
}

/// An adjustment that was made.
// A retry gets the first answer. The comments are in the API's document.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AdjustAnswer))]
pub struct Adjusted {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units added.
    pub delta: i64,
    /// Units available after the adjustment.
    pub remaining: i64,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}

/// Units of a sale that came back.
// A retry gets the first answer. The comments are in the API's document.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReverseAnswer))]
pub struct Reversed {
    /// The id of the return in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the sale.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reverses: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units that came back.
    pub quantity: i64,
    /// Whether they are on hand again.
    pub restock: bool,
    /// Units available after the return.
    pub remaining: i64,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}

/// A change of one level that was made.
#[derive(Debug)]
pub struct Changed {
    /// The id of the operation in the ledger.
    pub operation: OperationId,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units added to `on_hand`.
    pub delta: i64,
    /// How many units of a sale came back, if it is a return.
    pub returned: Option<i64>,
    /// Units available after it.
    pub remaining: i64,
    /// Whether it created the level.
    pub created: bool,
    /// The level after it. `None` if this was rebuilt from the ledger, and the level was not set.
    pub level: Option<StockLevel>,
    /// Whether this answers a retry of an earlier request.
    pub replayed: bool,
}

/// Sets and adjusts levels, and takes sold units back, each change in its own task.
#[derive(Debug, Clone)]
pub struct LevelService {
    store: Arc<dyn OperationStore>,
    policy: RetryPolicy,
    writes: WritePool,
    sold_out: Arc<SoldOut>,
    cached: Arc<dyn CachedLevels>,
    counters: Option<Arc<Counters>>,
}

impl LevelService {
    /// A service whose changes count as writes of `writes`. No refusal of `sold_out` is older than a
    /// change that was answered. Each change ends the `cached` levels of its SKU, and its counter in Redis.
    #[must_use]
    pub fn new(
        store: Arc<dyn OperationStore>,
        policy: RetryPolicy,
        writes: WritePool,
        sold_out: Arc<SoldOut>,
        cached: Arc<dyn CachedLevels>,
        counters: Option<Arc<Counters>>,
    ) -> Self {
        Self {
            store,
            policy,
            writes,
            sold_out,
            cached,
            counters,
        }
    }

    /// Sets a level; creates it if there is none.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the change.
    pub async fn set_level(&self, change: LevelChange) -> Result<LevelSet, StockError> {
        let changed = self.change(change.into()).await?;
        Ok(LevelSet {
            level: changed.level.ok_or(StockError::UnknownSku)?,
            created: changed.created,
        })
    }

    /// Adds units to a level or takes them from it.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the adjustment.
    pub async fn adjust(&self, adjustment: Adjustment) -> Result<Adjusted, StockError> {
        let changed = self.change(adjustment.into()).await?;
        Ok(Adjusted {
            operation: changed.operation,
            sku: changed.sku,
            warehouse: changed.warehouse,
            delta: changed.delta,
            remaining: changed.remaining,
            replayed: changed.replayed,
        })
    }

    /// Takes units of a sale back.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the reversal.
    pub async fn reverse(&self, reversal: Reversal) -> Result<Reversed, StockError> {
        let sale = self.store.operation(reversal.sale).await?;
        let sale = sale.ok_or(StockError::UnknownOperation)?;
        if sale.kind != MovementKind::Deducted {
            return Err(StockError::NotASale);
        }
        let (reverses, restock) = (reversal.sale, reversal.restock);
        let operation = reversal.of_sale((sale.sku, sale.warehouse), -sale.delta);
        let changed = self.change(operation).await?;
        Ok(Reversed {
            operation: changed.operation,
            reverses,
            sku: changed.sku,
            warehouse: changed.warehouse,
            quantity: changed.returned.unwrap_or_default(),
            restock,
            remaining: changed.remaining,
            replayed: changed.replayed,
        })
    }

    /// Runs a change of a level in its own task. Before its caller is answered, the deductions forget
    /// that the level was sold out, and its cached value and its counter end. That happens also if the
    /// caller leaves or its deadline passes.
    async fn change(&self, operation: Operation) -> Result<Changed, StockError> {
        let line = operation.first();
        let level = (line.sku.clone(), line.warehouse.clone());
        let deadline = operation.deadline;
        let slot = self.writes.admit(&level.0)?;
        let (sold_out, cached) = (Arc::clone(&self.sold_out), Arc::clone(&self.cached));
        let Self {
            store,
            policy,
            counters,
            ..
        } = self.clone();
        let write = async move {
            let changed = change(&*store, &policy, &operation).await;
            sold_out.forget(&level);
            cached.forget(&level.0);
            let may_be_changed = matches!(changed, Ok(_) | Err(StockError::OutcomeUnknown { .. }));
            if let Some(counters) = counters.filter(|_| may_be_changed) {
                let deleting = tokio::spawn(async move { counters.forget(&level).await });
                // Best effort. It goes on if Redis takes longer.
                let _ = tokio::time::timeout(DELETE_WAIT, deleting).await;
            }
            changed
        };
        self.writes.run(slot, deadline, write).await
    }
}

/// Makes an operation in this task that is not a sale, for [`LevelService`] and for tests that explore every
/// interleaving.
///
/// # Errors
/// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
pub async fn change(
    store: &dyn OperationStore,
    policy: &RetryPolicy,
    operation: &Operation,
) -> Result<Changed, StockError> {
    let attempt = |unknown: Option<_>| change_once(store, operation, unknown.is_some());
    run_to_outcome(policy, attempt).await
}

/// One attempt. `unknown`: whether the outcome of an earlier one is unknown.
async fn change_once(
    store: &dyn OperationStore,
    operation: &Operation,
    unknown: bool,
) -> Result<Outcome<Changed>, StoreError> {
    let outcome = store.write(operation).await?;
    let key = operation.idempotency.as_ref();
    let was_made = matches!(outcome, AttemptOutcome::Changed(_));
    // If an earlier attempt happened, this one finds the last units taken, has nothing left to write, or
    // fails its precondition.
    let may_be_recorded = outcome == AttemptOutcome::Duplicate || (key.is_some() && !was_made);
    let line = operation.first();
    // A setting that finds what it sets has no movement, and may have been made by an earlier attempt.
    let is_answered = was_made && !matches!(line.change, Change::Set(_));
    let recorded = match &outcome {
        AttemptOutcome::Recorded(movement) => Some(movement.as_ref().clone()),
        _ if (unknown && !is_answered) || may_be_recorded => {
            store.recorded(&line.sku, operation.id, key).await?
        }
        _ => None,
    };
    if let Some(movement) = recorded {
        // Here, because a read that fails must not turn a change that was made into a refusal.
        let level = match line.change {
            Change::Set(_) => store.level(&line.sku, &line.warehouse).await?,
            _ => None,
        };
        return Ok(Outcome::Done(replay(operation, movement, level)));
    }
    Ok(Outcome::Done(match outcome {
        AttemptOutcome::Changed(changed) => Ok(Changed::new(operation.id, *changed)),
        AttemptOutcome::Insufficient { available } | AttemptOutcome::Unrecorded { available } => {
            Err(StockError::Insufficient {
                requested: requested(operation),
                available,
            })
        }
        AttemptOutcome::UnknownSku => Err(StockError::UnknownSku),
        AttemptOutcome::Refused(refusal) => Err(refusal.error(requested(operation))),
        AttemptOutcome::Deducted { .. } => Err(StockError::Internal {
            what: "a sale is no change of a level".to_owned(),
        }),
        AttemptOutcome::Conflict
        | AttemptOutcome::LockLost
        | AttemptOutcome::Duplicate
        | AttemptOutcome::Recorded(_) => return Ok(Outcome::Retry),
    }))
}

/// The units that an operation asks for.
fn requested(operation: &Operation) -> i64 {
    match &operation.first().change {
        Change::Deduct(quantity) => quantity.units(),
        Change::Adjust(delta) => -delta,
        Change::Return(one) => one.quantity.map_or(1, Quantity::units),
        Change::Set(_) => 0,
    }
}

/// The first answer again, rebuilt from the ledger; or the refusal of a key that was used for another
/// request.
fn replay(
    operation: &Operation,
    movement: Movement,
    level: Option<StockLevel>,
) -> Result<Changed, StockError> {
    let key = operation.idempotency.as_ref();
    let is_set = matches!(operation.first().change, Change::Set(_));
    if movement.request_hash != key.map(|key| key.hash) {
        return Err(StockError::IdempotencyKeyReused);
    }
    Ok(Changed {
        operation: movement.operation,
        sku: movement.sku,
        warehouse: movement.warehouse,
        delta: movement.delta,
        returned: movement.returned,
        remaining: movement.available_after,
        // An operation that set an existing level has read it.
        created: is_set && movement.read_version.is_none(),
        level,
        // If it is this very operation, this request is answered for the first time.
        replayed: movement.operation != operation.id,
    })
}

impl Changed {
    fn new(operation: OperationId, changed: ChangedLevel) -> Self {
        let level = changed.level;
        Self {
            operation,
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
            delta: changed.delta,
            returned: changed.returned,
            remaining: level.available(),
            created: changed.created,
            level: Some(level),
            replayed: false,
        }
    }
}
