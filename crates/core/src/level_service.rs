//! Changes of a level that are not sales, from the first attempt to the answer.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::deduct::{Counters, Outcome, RetryPolicy, SoldOut, WritePool, run_to_outcome};
use crate::ports::{CachedLevels, ChangeOutcome, LevelStore, StoreError};
use crate::stock::{
    Adjustment, Idempotency, LevelChange, Movement, MovementKind, OperationId, Reversal, Sku,
    StockError, StockLevel, Warehouse,
};

mod reversal;

pub use reversal::Reversed;
use reversal::reverse_once;

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

/// Sets and adjusts levels, each change in its own task.
#[derive(Debug, Clone)]
pub struct LevelService {
    store: Arc<dyn LevelStore>,
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
        store: Arc<dyn LevelStore>,
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
        let level = (change.sku.clone(), change.warehouse.clone());
        let deadline = change.deadline;
        let Self { store, policy, .. } = self.clone();
        let write = async move { set_level(&*store, &policy, &change).await };
        self.run(level, deadline, write).await
    }

    /// Adds units to a level or takes them from it.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the adjustment.
    pub async fn adjust(&self, adjustment: Adjustment) -> Result<Adjusted, StockError> {
        let level = (adjustment.sku.clone(), adjustment.warehouse.clone());
        let deadline = adjustment.deadline;
        let Self { store, policy, .. } = self.clone();
        let write = async move { adjust(&*store, &policy, &adjustment).await };
        self.run(level, deadline, write).await
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
        let level = (sale.sku.clone(), sale.warehouse.clone());
        let deadline = reversal.deadline;
        let Self { store, policy, .. } = self.clone();
        let write = async move { reverse(&*store, &policy, &reversal, &sale).await };
        self.run(level, deadline, write).await
    }

    /// Runs a change of a level in its own task. Before its caller is answered, the deductions forget
    /// that the level was sold out, and its cached value and its counter end. That happens also if the
    /// caller leaves or its deadline passes.
    async fn run<T: Send + 'static>(
        &self,
        level: (Sku, Warehouse),
        deadline: Instant,
        write: impl Future<Output = Result<T, StockError>> + Send + 'static,
    ) -> Result<T, StockError> {
        let slot = self.writes.admit(&level.0)?;
        let (sold_out, cached) = (Arc::clone(&self.sold_out), Arc::clone(&self.cached));
        let counters = self.counters.clone();
        let write = async move {
            let changed = write.await;
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

/// Sets a level in this task, for [`LevelService`] and for tests that explore every interleaving.
///
/// # Errors
/// As [`LevelService::set_level`].
pub async fn set_level(
    store: &dyn LevelStore,
    policy: &RetryPolicy,
    change: &LevelChange,
) -> Result<LevelSet, StockError> {
    let attempt = |unknown: Option<_>| set_level_once(store, change, unknown.is_some());
    run_to_outcome(policy, attempt).await
}

/// The same for an adjustment.
///
/// # Errors
/// As [`LevelService::adjust`].
pub async fn adjust(
    store: &dyn LevelStore,
    policy: &RetryPolicy,
    adjustment: &Adjustment,
) -> Result<Adjusted, StockError> {
    let attempt = |unknown: Option<_>| adjust_once(store, adjustment, unknown.is_some());
    run_to_outcome(policy, attempt).await
}

/// The same for a reversal of `sale`.
///
/// # Errors
/// As [`LevelService::reverse`].
pub async fn reverse(
    store: &dyn LevelStore,
    policy: &RetryPolicy,
    reversal: &Reversal,
    sale: &Movement,
) -> Result<Reversed, StockError> {
    let attempt = |unknown: Option<_>| reverse_once(store, reversal, sale, unknown.is_some());
    run_to_outcome(policy, attempt).await
}

async fn set_level_once(
    store: &dyn LevelStore,
    change: &LevelChange,
    unknown: bool,
) -> Result<Outcome<LevelSet>, StoreError> {
    let outcome = store.set_level(change).await?;
    // If an earlier attempt happened, this one has nothing left to write, or fails its precondition.
    if unknown || outcome == ChangeOutcome::Duplicate {
        let recorded = store.recorded(&change.sku, change.operation, None).await?;
        let level = store.level(&change.sku, &change.warehouse).await?;
        if let (Some(movement), Some(level)) = (recorded, level) {
            // An operation that set an existing level has read it.
            let created = movement.read_version.is_none();
            return Ok(Outcome::Done(Ok(LevelSet { level, created })));
        }
    }
    if let ChangeOutcome::Done { level, created } = outcome {
        return Ok(Outcome::Done(Ok(LevelSet { level, created })));
    }
    Ok(refusal(&outcome, 0))
}

async fn adjust_once(
    store: &dyn LevelStore,
    adjustment: &Adjustment,
    unknown: bool,
) -> Result<Outcome<Adjusted>, StoreError> {
    let Adjustment {
        operation,
        delta,
        ref idempotency,
        ..
    } = *adjustment;
    let outcome = store.adjust(adjustment).await?;
    if let ChangeOutcome::Done { level, .. } = outcome {
        return Ok(Outcome::Done(Ok(Adjusted {
            operation,
            delta,
            remaining: level.available(),
            sku: level.sku,
            warehouse: level.warehouse,
            replayed: false,
        })));
    }
    // The retry of an adjustment that took the last units finds none left.
    let recorded = if unknown || idempotency.is_some() || outcome == ChangeOutcome::Duplicate {
        let sku = &adjustment.sku;
        store.recorded(sku, operation, idempotency.as_ref()).await?
    } else {
        None
    };
    Ok(match recorded {
        Some(movement) => Outcome::Done(replay(operation, idempotency.as_ref(), movement)),
        None => refusal(&outcome, -delta),
    })
}

fn replay(
    operation: OperationId,
    idempotency: Option<&Idempotency>,
    movement: Movement,
) -> Result<Adjusted, StockError> {
    if movement.request_hash != idempotency.map(|idempotency| idempotency.hash) {
        return Err(StockError::IdempotencyKeyReused);
    }
    Ok(Adjusted {
        operation: movement.operation,
        sku: movement.sku,
        warehouse: movement.warehouse,
        delta: movement.delta,
        remaining: movement.available_after,
        replayed: movement.operation != operation,
    })
}

/// The answer to a change that was not made. `requested` is the number of units to take.
fn refusal<T>(outcome: &ChangeOutcome, requested: i64) -> Outcome<T> {
    Outcome::Done(Err(match *outcome {
        ChangeOutcome::Done { .. } | ChangeOutcome::Duplicate | ChangeOutcome::Conflict => {
            return Outcome::Retry;
        }
        ChangeOutcome::UnknownSku => StockError::UnknownSku,
        ChangeOutcome::PreconditionFailed => StockError::PreconditionFailed,
        ChangeOutcome::PreconditionRequired => StockError::PreconditionRequired,
        ChangeOutcome::BelowLimit { available } if requested > 0 => StockError::Insufficient {
            requested,
            available,
        },
        ChangeOutcome::BelowLimit { .. } => StockError::BelowLimit,
        ChangeOutcome::TooLarge => StockError::TooLarge,
    }))
}
