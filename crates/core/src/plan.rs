//! Decides what operations make of stock: every rule of business, and nothing else.
//!
//! Operations are decided one after the other, on a [`Snapshot`] of what they concern. Each sees what those
//! before it have changed. A plan does no I/O, and reads no clock.
//!
//! An operation is made with all of its lines, or not at all. Each line sees what those before it have
//! changed, and a refusal names every line that cannot be made ([`AttemptOutcome::RefusedLines`]).
//!
//! | rule | answer | code |
//! |---|---|---|
//! | an operation, or a key of its caller, is recorded once | the recorded movement, or the refusal of the key | `idempotency-key-reused` |
//! | a deduction, or an adjustment that takes units, leaves no less than `held - backorder_limit` on hand | [`AttemptOutcome::Insufficient`] | `insufficient-stock` |
//! | a line takes its units from the first of its warehouses that has all; or, if it may be split, from each what it has | [`AttemptOutcome::Short`] | `insufficient-stock` |
//! | only a setting or a count creates a level; a setting needs a number of units for that | [`AttemptOutcome::UnknownSku`] | `unknown-sku` |
//! | a hold leaves no less than `held - backorder_limit` on hand | [`AttemptOutcome::Insufficient`] | `insufficient-stock` |
//! | a line of a hold ends once; a line ended by its expiry can still be released, or sold from what is available | [`Refusal::HoldEnded`] | `hold-ended` |
//! | a hold that is due, or was ended by its expiry, is sold only if its caller accepts that | [`Refusal::HoldExpired`] | `hold-expired` |
//! | a return gives no more units back than are left of its line of the sale | [`Refusal::ExceedsSale`] | `exceeds-sale` |
//! | the caller's precondition holds | [`Refusal::PreconditionFailed`] | `precondition-failed` |
//! | counted units are set only if the level has as many as the caller expects, or does not exist, as expected | [`Refusal::Differs`] | `precondition-failed` |
//! | units are set without a precondition only if the level is new, or has not changed since it was created | [`Refusal::PreconditionRequired`] | `precondition-required` |
//! | a setting or a count keeps `on_hand - held >= -backorder_limit`; so does an adjustment that adds units | [`Refusal::BelowLimit`] | `below-limit` |
//! | a number of units has an absolute value of at most [`MAX_UNITS`] | [`Refusal::TooLarge`] | `level-too-large` |

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use crate::ports::{AttemptOutcome, BatchAnswer, ChangedLevel, StoreError};
use crate::stock::{
    Change, Ending, MadeLine, Movement, MovementKind, NEVER, Operation, OperationId, Sku,
    StockLevel, Warehouse,
};
#[cfg(doc)]
use crate::stock::{MAX_UNITS, Refusal};

mod planning;
mod recorded;
mod rules;

use planning::Planning;
pub use recorded::Recorded;

/// If the deadline of an operation is nearer than this, it is not attempted together with others: their
/// attempt would expire with it.
pub const LAST_MOMENT: Duration = Duration::from_millis(100);

/// What a plan decides on. Read the levels before the ledger: if a level shows the sale of the last
/// unit, the ledger must have it.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The levels that the operations name. If an operation sets a level: all levels of its SKU.
    pub levels: Vec<StockLevel>,
    /// The movements that the ledger has of the operations and of their keys. `None` if it was not asked.
    pub recorded: Option<Vec<Movement>>,
    /// How many units of each line of a sale have come back.
    pub returned: Returned,
    /// The open lines of the holds that operations end: units, and when they end.
    pub holds: HashMap<HoldLine, (i64, i64)>,
    /// For each line that operations end and that is no longer open: how it ended.
    pub ends: HashMap<HoldLine, MovementKind>,
    /// The database's clock in milliseconds since 1970, if a hold begins or ends.
    pub now: i64,
}

impl Snapshot {
    /// Assumes that the lines of holds that operations end are as they were read before.
    pub fn assume_open(&mut self, operations: &[Operation]) {
        for line in operations.iter().flat_map(|operation| &operation.lines) {
            if let Change::End(Ending {
                hold,
                line,
                open: Some(units),
                ..
            }) = line.change
            {
                self.holds.insert((hold, line), (units, NEVER));
            }
        }
    }
}

/// The operation and the line of a hold.
pub type HoldLine = (OperationId, i64);

/// Units that have come back, by the operation and the line of the sale.
pub type Returned = HashMap<(OperationId, i64), i64>;

/// What becomes of stock and of each operation, if the movements are committed.
#[derive(Debug)]
pub struct Plan<'a> {
    /// The levels that the movements change.
    pub levels: Vec<PlannedLevel<'a>>,
    /// In the order of the operations and of their lines.
    pub movements: Vec<PlannedMovement<'a>>,
    /// The lines of holds that end, and the time at which each must be due, or
    /// [`NEVER`] if it need not be.
    pub ended: Vec<(HoldLine, i64)>,
    /// One for each operation.
    decisions: Vec<Decision>,
}

/// What becomes of a level.
#[derive(Debug)]
pub struct PlannedLevel<'a> {
    /// The SKU.
    pub sku: &'a Sku,
    /// The warehouse.
    pub warehouse: &'a Warehouse,
    /// Units added to `on_hand`.
    pub delta: i64,
    /// Units added to `held`.
    pub held_delta: i64,
    /// Units added to those that are available.
    pub available_delta: i64,
    /// The new backorder limit, if it is set.
    pub backorder_limit: Option<i64>,
    /// The number of its movements.
    pub movements: i64,
    /// What the plan was decided on. `None` if nothing was read, or if the level is new.
    pub read: Option<StockLevel>,
    /// Whether it is created.
    pub is_new: bool,
}

/// A movement that is to be recorded.
#[derive(Debug)]
pub struct PlannedMovement<'a> {
    /// Its operation.
    pub operation: &'a Operation,
    /// The place of its line in the operation.
    pub line: usize,
    /// Its line in the ledger.
    pub ledger_line: i64,
    /// Whether it has the lowest line of its operation, and so the key.
    pub has_key: bool,
    /// The place of its level in the plan.
    pub level: usize,
    /// Its place among the movements of the level, from 1.
    pub number: i64,
    /// The kind of change.
    pub kind: MovementKind,
    /// Units added to `on_hand`.
    pub delta: i64,
    /// Units added to `held`.
    pub held_delta: i64,
    /// Units that it and the movements of the level before it add to those that are available.
    pub available_delta: i64,
    /// The version that the level had, if it was set.
    pub read_version: Option<i64>,
    /// The sale whose units come back, or the hold that ends.
    pub reverses: Option<OperationId>,
    /// How many units of a sale come back.
    pub returned: Option<i64>,
    /// When it ends, if it is a hold.
    pub expires_at: Option<i64>,
}

#[derive(Debug)]
enum Decision {
    /// True even if nothing is committed.
    Final(AttemptOutcome),
    /// An outcome that depends on the movements before it.
    AfterMovements(AttemptOutcome),
    /// The movement of a deduction of one level; or of another operation of one level, with what it
    /// makes of that level, which was read.
    Movement(usize, Option<Box<ChangedLevel>>),
    /// The movements of any other operation.
    Movements(Range<usize>),
}

impl PlannedLevel<'_> {
    /// The version that was read.
    #[must_use]
    pub fn read_version(&self) -> Option<i64> {
        self.read.as_ref().map(|level| level.version)
    }
}

impl PlannedMovement<'_> {
    /// The change that it records.
    #[must_use]
    pub fn change(&self) -> &Change {
        &self.operation.lines[self.line].change
    }

    /// The row of the ledger, without what the write computes: `available_after` and `level_version`. For tests.
    #[cfg(any(test, feature = "model"))]
    pub(crate) fn recorded(&self, level: &PlannedLevel<'_>) -> Movement {
        let operation = self.operation;
        let key = operation.idempotency.as_ref().filter(|_| self.has_key);
        Movement {
            operation: operation.id,
            line: self.ledger_line,
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
            kind: self.kind.clone(),
            delta: self.delta,
            held_delta: self.held_delta,
            available_after: 0,
            level_version: 0,
            read_version: self.read_version,
            strategy: operation.strategy.map(str::to_owned),
            caller: operation.caller.as_str().to_owned(),
            idempotency_key: key.map(|one| one.key.as_str().to_owned()),
            request_hash: key.map(|one| one.hash),
            reason: operation.remarks.reason.clone(),
            reference: operation.remarks.reference.clone(),
            reverses: self.reverses,
            returned: self.returned,
            created_at: "1970-01-01T00:00:00Z".to_owned(),
        }
    }

    /// What it makes of its level, if so many units are available then.
    fn made(&self, level: &PlannedLevel<'_>, remaining: i64) -> MadeLine {
        MadeLine {
            line: self.ledger_line,
            sku: level.sku.clone(),
            warehouse: level.warehouse.clone(),
            delta: self.delta,
            held_delta: self.held_delta,
            returned: self.returned,
            expires_at: self.expires_at,
            remaining,
        }
    }
}

/// The answer to each operation. `None` if a level that it concerns was left out of the write: nothing of
/// the operation was made.
pub type PlanAnswers = Vec<Option<BatchAnswer>>;

impl<'a> Plan<'a> {
    /// Assumes that the units of all deductions and holds are available, and that the ledger has none of
    /// them. `now`: of several operations, one whose deadline is within [`LAST_MOMENT`] of it is left
    /// for another attempt. `clock`: this moment on the database's clock, in milliseconds since 1970.
    /// New holds expire from it.
    #[must_use]
    pub fn unread(
        operations: impl IntoIterator<Item = &'a Operation>,
        now: Instant,
        clock: i64,
    ) -> Self {
        Planning::unread(clock).plan(operations, now)
    }

    /// Decides on what was read.
    #[must_use]
    pub fn new(
        snapshot: &Snapshot,
        operations: impl IntoIterator<Item = &'a Operation>,
        now: Instant,
    ) -> Self {
        Planning::new(snapshot).plan(operations, now)
    }

    /// When the attempt expires: with the operation that expires first. `None` if there is nothing to write.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let operations = self.movements.iter().map(|movement| movement.operation);
        operations.map(|operation| operation.deadline).min()
    }

    /// The number of operations, including those that are refused.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.decisions.len()
    }

    /// Whether lines of holds begin or end.
    #[must_use]
    pub fn has_holds(&self) -> bool {
        let mut movements = self.movements.iter();
        !self.ended.is_empty() || movements.any(|movement| movement.expires_at.is_some())
    }

    /// Whether each operation has a movement: none is refused.
    #[must_use]
    pub fn makes_all(&self) -> bool {
        let mut decisions = self.decisions.iter();
        decisions.all(|one| matches!(one, Decision::Movement(..) | Decision::Movements(_)))
    }

    /// Whether each level can be written without the others: no operation concerns two.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        let mut operations = self.movements.iter().map(|movement| movement.operation);
        operations.all(Operation::is_single)
    }

    /// The movements, each with its level.
    pub fn movements(&self) -> impl Iterator<Item = (&PlannedMovement<'a>, &PlannedLevel<'a>)> {
        let movements = self.movements.iter();
        movements.map(|movement| (movement, &self.levels[movement.level]))
    }

    /// How many movements of the same level follow `movement`, and the units that they add to those that
    /// are available.
    #[must_use]
    pub fn after(&self, movement: &PlannedMovement<'_>) -> (i64, i64) {
        let level = &self.levels[movement.level];
        (
            level.movements - movement.number,
            level.available_delta - movement.available_delta,
        )
    }

    /// The answers, if nothing is to be written.
    #[must_use]
    pub fn without_movements(self) -> Vec<BatchAnswer> {
        let all = self.committed(&[]).into_iter();
        all.map(|answer| answer.unwrap_or(Ok(AttemptOutcome::Conflict)))
            .collect()
    }

    /// The answers, if each level is committed with so many available units; `None`: it was left out. If
    /// a level was left out, answers that may depend on its movements come from another attempt.
    #[must_use]
    pub fn committed(self, available: &[Option<i64>]) -> PlanAnswers {
        let Self {
            levels,
            movements,
            decisions,
            ended: _,
        } = self;
        let is_whole = available.iter().all(Option::is_some);
        let remaining = |movement: &PlannedMovement<'_>| {
            let level = &levels[movement.level];
            let after = level.available_delta - movement.available_delta;
            Some((*available.get(movement.level)?)? - after)
        };
        let answer = |decision| match decision {
            Decision::Final(outcome) => Some(Ok(outcome)),
            Decision::AfterMovements(outcome) if is_whole => Some(Ok(outcome)),
            // Not `None`, which means that its own level was left out.
            Decision::AfterMovements(_) => Some(Ok(AttemptOutcome::Conflict)),
            Decision::Movement(_, Some(changed)) => {
                is_whole.then_some(Ok(AttemptOutcome::Changed(changed)))
            }
            Decision::Movement(place, None) => {
                let remaining = remaining(&movements[place])?;
                Some(Ok(AttemptOutcome::Deducted { remaining }))
            }
            Decision::Movements(places) => {
                let movements = movements[places].iter();
                let made = movements.map(|one| Some(one.made(&levels[one.level], remaining(one)?)));
                let mut made = made.collect::<Option<Vec<_>>>()?;
                // As they are read from the ledger.
                made.sort_unstable_by_key(|made| made.line);
                Some(Ok(AttemptOutcome::Lines(made)))
            }
        };
        decisions.into_iter().map(answer).collect()
    }

    /// The answers, if the write ended with `error`. A final decision is still true. An outcome that
    /// depended on movements becomes a conflict, and its caller tries again.
    #[must_use]
    pub fn failed(self, error: &StoreError) -> Vec<BatchAnswer> {
        let answer = |decision| match decision {
            Decision::Final(outcome) => Ok(outcome),
            Decision::Movement(..) | Decision::Movements(_) => Err(error.clone()),
            Decision::AfterMovements(_) => Ok(AttemptOutcome::Conflict),
        };
        self.decisions.into_iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests;
