//! Every change of stock except a deduction of one line, from the first attempt to the answer.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::deduct::{
    Counters, Outcome, RetryPolicy, Scheduler, WritePool, late_attempt, run_to_outcome,
};
use crate::ports::{
    AttemptOutcome, CachedLevels, DeductionMetrics, Expiry, HoldStore, LateAttempt, OperationStore,
    StoreError,
};
use crate::stock::{
    Change, How, Line, MadeLine, Movement, Operation, OperationId, Refusal, RefusedLine, Reversal,
    StockError, StockLevel,
};

mod answers;
mod holds;
mod import;
mod open_lines;
mod reclaim;
mod shards;

pub use answers::{
    Adjusted, AdjustedLine, AdjustedLines, Ordered, OrderedLine, Reversed, ReversedLine,
    ReversedLines,
};

use answers::name_request_lines;
pub use holds::{Confirmed, ConfirmedLine, Held, Released};
pub use import::{Levels, preview};
use open_lines::OpenLines;
use reclaim::Reclaims;
pub(crate) use reclaim::missing;

/// How long the answer may wait until the counter in Redis is deleted.
const DELETE_WAIT: Duration = Duration::from_millis(50);

/// A change that was made.
#[derive(Debug)]
pub struct Changed {
    /// The id of the operation in the ledger.
    pub operation: OperationId,
    /// Its lines, at least one.
    pub lines: Vec<MadeLine>,
    /// Whether it created the level.
    pub created: bool,
    /// The level after the change, if the operation changed one level. `None` if this was rebuilt from
    /// the ledger, and the level was not set.
    pub level: Option<StockLevel>,
    /// The strategy that protected it, if this was rebuilt from the ledger, and it is a deduction of one line.
    pub strategy: Option<String>,
    /// Whether this answers a retry of an earlier request.
    pub replayed: bool,
}

/// Makes orders, holds and their ends, settings, adjustments, counts, returns and rows of imports, each
/// in its own task.
#[derive(Debug, Clone)]
pub struct LevelService {
    store: Arc<dyn HoldStore>,
    open_lines: Arc<OpenLines>,
    reclaims: Arc<Reclaims>,
    policy: RetryPolicy,
    writes: WritePool,
    scheduler: Arc<Scheduler>,
    cached: Arc<dyn CachedLevels>,
    counters: Option<Arc<Counters>>,
    metrics: Arc<dyn DeductionMetrics>,
}

impl LevelService {
    /// A service whose changes count as writes of `writes`, and share transactions with what else waits
    /// in the `scheduler`. Before a change is answered, the scheduler forgets that its levels were sold
    /// out. Each change removes the `cached` levels of its SKUs, and deletes their counters in Redis.
    /// `metrics` counts orders, changes and expired holds.
    #[must_use]
    pub fn new(
        store: Arc<dyn HoldStore>,
        policy: RetryPolicy,
        writes: WritePool,
        scheduler: Arc<Scheduler>,
        cached: Arc<dyn CachedLevels>,
        counters: Option<Arc<Counters>>,
        metrics: Arc<dyn DeductionMetrics>,
    ) -> Self {
        Self {
            open_lines: OpenLines::new(Arc::clone(&store)),
            store,
            reclaims: Arc::default(),
            policy,
            writes,
            scheduler,
            cached,
            counters,
            metrics,
        }
    }

    /// Takes the units of every line, or nothing.
    ///
    /// # Errors
    /// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the order.
    pub async fn order(&self, order: Operation) -> Result<Ordered, StockError> {
        let started = Instant::now();
        let strategy = order.strategy.unwrap_or_default();
        let choosing = order.lines.iter().any(|line| !line.others.is_empty());
        let request = choosing.then(|| order.lines.clone());
        let answer = self.change(order).await.map(|made| {
            let mut ordered = Ordered::new(made, strategy);
            name_request_lines(&mut ordered.lines, request.as_deref());
            ordered
        });
        let outcome = match &answer {
            Ok(ordered) if ordered.replayed => "replayed",
            Ok(_) => "deducted",
            Err(error) => error.code(),
        };
        self.metrics.deduction(strategy, outcome, started.elapsed());
        answer
    }

    /// The operation that takes units of a sale back.
    ///
    /// # Errors
    /// Those of the store, and of [`Reversal::of_sale`]; [`StockError::UnknownOperation`].
    pub async fn reversal(&self, reversal: Reversal) -> Result<Operation, StockError> {
        let sold = self.store.operation(reversal.sale).await?;
        if sold.is_empty() {
            return Err(StockError::UnknownOperation);
        }
        reversal.of_sale(sold)
    }

    /// Makes an operation in its own task. Before its caller is answered, the scheduler forgets that its
    /// levels were sold out, and their cached values are removed. Their counters are deleted, too: the
    /// answer waits for that for at most [`DELETE_WAIT`]. That happens also if the caller leaves or its
    /// deadline passes.
    async fn change_once(&self, operation: Operation) -> Result<Changed, StockError> {
        let levels = operation.levels();
        let places: BTreeSet<_> = levels
            .map(|(sku, warehouse)| (sku.clone(), warehouse.clone()))
            .collect();
        let deadline = operation.deadline;
        let slot = match self.admit(&operation).await? {
            Ok(slot) => slot,
            Err(made) => return Ok(made),
        };
        let this = self.clone();
        // Boxed, because the future is large: as part of its caller's it would be copied with each request.
        let write = Box::pin(async move {
            let changed = change(&*this.store, &this.scheduler, &this.policy, &operation).await;
            for level in &places {
                this.scheduler.sold_out().forget(level);
                this.cached.forget(&level.0);
            }
            if matches!(changed, Ok(_) | Err(StockError::OutcomeUnknown { .. })) {
                this.forget_counters(places).await;
            }
            changed
        });
        self.writes.run(slot, deadline, write).await
    }
}

/// Makes, in the caller's task, an operation that is not a deduction of one line: for [`LevelService`],
/// and for tests that explore every interleaving.
///
/// # Errors
/// Every error but [`StockError::OutcomeUnknown`] means that nothing was changed.
pub async fn change(
    store: &dyn OperationStore,
    scheduler: &Arc<Scheduler>,
    policy: &RetryPolicy,
    operation: &Operation,
) -> Result<Changed, StockError> {
    let attempt = |unknown| change_once(store, scheduler, policy, operation, unknown);
    run_to_outcome(policy, attempt).await
}

/// One attempt. `unknown`: when earlier ones expire whose outcome is unknown.
async fn change_once(
    store: &dyn OperationStore,
    scheduler: &Arc<Scheduler>,
    policy: &RetryPolicy,
    operation: &Operation,
    unknown: Option<Expiry>,
) -> Result<Outcome<Changed>, StoreError> {
    let outcome = scheduler.attempt(operation.clone()).await?;
    let was_made = matches!(
        outcome,
        AttemptOutcome::Changed(_) | AttemptOutcome::Lines(_)
    );
    // A setting that changes nothing records no movement, so it may have been made by an earlier
    // attempt.
    let is_answered = was_made && !matches!(operation.first().change, Change::Set(_));
    // If an earlier attempt happened, this one finds the last units taken, has nothing left to write, or
    // fails its precondition.
    let may_be_recorded = operation.idempotency.is_some() && !was_made;
    let asks = (unknown.is_some() && !is_answered) || may_be_recorded;
    settle(store, policy, operation, (outcome, asks), unknown).await
}

/// What an attempt means for its request. `asks`: whether an earlier one may have made the operation, so that the
/// ledger decides.
pub(crate) async fn settle(
    store: &dyn OperationStore,
    policy: &RetryPolicy,
    operation: &Operation,
    (outcome, asks): (AttemptOutcome, bool),
    unknown: Option<Expiry>,
) -> Result<Outcome<Changed>, StoreError> {
    let line = operation.first();
    let recorded = match &outcome {
        AttemptOutcome::Recorded(movement) => Some(movement.as_ref().clone()),
        _ if asks || outcome == AttemptOutcome::Duplicate => {
            let key = operation.idempotency.as_ref();
            let found = store.recorded(&line.sku, operation.id, key).await;
            if outcome == AttemptOutcome::Duplicate {
                // The ledger has it, so an error of this read is no refusal.
                found.map_err(StoreError::outcome_unknown)?
            } else {
                found?
            }
        }
        _ => None,
    };
    if let Some(movement) = recorded {
        return Ok(Outcome::Done(replay(store, operation, movement).await?));
    }
    let refusal = match outcome {
        AttemptOutcome::Changed(changed) => {
            return Ok(Outcome::Done(Ok(Changed {
                created: changed.created,
                level: Some(changed.level),
                ..Changed::new(operation.id, vec![changed.made], false)
            })));
        }
        AttemptOutcome::Lines(lines) => {
            return Ok(Outcome::Done(Ok(Changed::new(operation.id, lines, false))));
        }
        AttemptOutcome::Conflict
        | AttemptOutcome::LockLost
        | AttemptOutcome::Duplicate
        | AttemptOutcome::Recorded(_) => return Ok(Outcome::Retry),
        AttemptOutcome::RefusedLines(lines) => refused_lines(operation, lines),
        refused => refusal(line, refused),
    };
    let Some(expiry) = unknown else {
        return Ok(Outcome::Done(Err(refusal)));
    };
    // No refusal is definite while an earlier attempt was made or can still be made.
    Ok(
        match late_attempt(store, policy, operation, expiry).await? {
            LateAttempt::Recorded(movement) => {
                Outcome::Done(replay(store, operation, *movement).await?)
            }
            LateAttempt::Dead => Outcome::Done(Err(refusal)),
            LateAttempt::Alive => Outcome::Retry,
        },
    )
}

/// Why a line is refused.
fn refusal(line: &Line, outcome: AttemptOutcome) -> StockError {
    let requested = match &line.change {
        Change::Deduct(quantity) => quantity.units(),
        Change::Adjust(delta) => -delta,
        Change::Hold(holding) => holding.quantity.units(),
        Change::End(end) => match end.how {
            How::Confirm { units, .. } => units,
            How::Release | How::Expire => 0,
        },
        Change::Return(_) | Change::Set(_) | Change::Count(_) => 0,
    };
    match outcome {
        AttemptOutcome::Insufficient { available } | AttemptOutcome::Unrecorded { available }
            if matches!(line.change, Change::End(_)) =>
        {
            let expired = Refusal::HoldExpired {
                requested,
                available,
            };
            expired.into()
        }
        AttemptOutcome::Insufficient { available } | AttemptOutcome::Unrecorded { available } => {
            StockError::Insufficient {
                requested,
                available,
            }
        }
        AttemptOutcome::UnknownSku => StockError::UnknownSku,
        AttemptOutcome::Refused(refusal) => refusal.into(),
        other => StockError::Internal {
            what: format!("no rule refuses a line with {other:?}"),
        },
    }
}

/// Why lines are refused, in each of their warehouses: all whose SKU is unknown; or else all that have
/// the reason of the first one.
fn refused_lines(operation: &Operation, refused: Vec<(usize, AttemptOutcome)>) -> StockError {
    let mut lines = Vec::with_capacity(refused.len());
    for (place, outcome) in refused {
        let line = &operation.lines[place];
        for (warehouse, (sku, name)) in line.levels().enumerate() {
            let outcome = match &outcome {
                AttemptOutcome::Short { available } => AttemptOutcome::Insufficient {
                    available: available[warehouse],
                },
                other => other.clone(),
            };
            lines.push(RefusedLine {
                line: line.number(place),
                sku: sku.clone(),
                warehouse: name.clone(),
                error: refusal(line, outcome),
            });
        }
    }
    let unknown = lines
        .iter()
        .find(|one| matches!(one.error, StockError::UnknownSku));
    let code = unknown.or(lines.first()).map(|one| one.error.code());
    lines.retain(|one| Some(one.error.code()) == code);
    StockError::Lines(lines)
}

/// The first answer again, rebuilt from the ledger, which has `movement` of it; or the refusal of a key that
/// was used for another request.
async fn replay(
    store: &dyn OperationStore,
    operation: &Operation,
    movement: Movement,
) -> Result<Result<Changed, StockError>, StoreError> {
    let key = operation.idempotency.as_ref();
    if movement.request_hash != key.map(|key| key.hash) {
        return Ok(Err(StockError::IdempotencyKeyReused));
    }
    let line = operation.first();
    let is_set = matches!(line.change, Change::Set(_));
    // A read that fails must not turn a change that was made into a refusal.
    let level = if is_set {
        let level = store.level(&line.sku, &line.warehouse).await;
        level.map_err(StoreError::outcome_unknown)?
    } else {
        None
    };
    let (recorded, strategy) = (movement.operation, movement.strategy.clone());
    // An operation that set an existing level has read it.
    let created = is_set && movement.read_version.is_none();
    let movements = if operation.is_single() {
        vec![movement]
    } else {
        let movements = store.operation(recorded).await;
        movements.map_err(StoreError::outcome_unknown)?
    };
    let lines = movements.into_iter().map(MadeLine::from).collect();
    Ok(Ok(Changed {
        created,
        level,
        strategy,
        // If it is this very operation, this request is answered for the first time.
        ..Changed::new(recorded, lines, recorded != operation.id)
    }))
}
