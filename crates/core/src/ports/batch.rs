//! Decides a batch of deductions of one level, as if they came one after the other.
//!
//! The first attempt reads nothing: it takes all units at once, on condition that they are available. If
//! that is refused, the store reads the level and the ledger, decides each deduction, and writes the
//! level on condition that its version is still the one that was read. So a refusal is never based on an
//! older level. If other replicas change the level first, it is read again; after that the row is locked
//! from the reading to the commit.
//!
//! No deduction fails because of another one. If an index of the ledger refuses the batch although
//! the ledger was asked, another request has just recorded a key: the ledger is asked again, and then
//! each deduction is made alone. A large batch is divided first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{AttemptOutcome, StoreError};
use crate::stock::{Deduction, Idempotency, Movement, OperationId, StockLevel};

/// What the store answers to one deduction of a batch.
pub type BatchAnswer = Result<AttemptOutcome, StoreError>;

/// How many conditional writes may lose against other replicas before the row is locked.
const CONFLICTS: u32 = 2;

/// After this many waits for keys in other transactions, or one wait for the level, the rest of a batch
/// is not made alone: each wait takes the whole wait limit. An unknown error counts as a wait: it may be
/// of the server and not of the row.
const WAITS: u32 = 2;

/// How often the ledger may refuse a batch before each deduction is made alone.
const DUPLICATES: u32 = 2;

/// How many deductions at most are made alone one after the other. The callers of all of them wait, and
/// each takes a commit.
const ALONE: usize = 256;

/// A deduction whose caller is answered sooner is not attempted: the batch would expire with it.
pub const LAST_MOMENT: Duration = Duration::from_millis(100);

/// How a store makes a batch.
pub trait BatchStore: Sync {
    /// Decides with [`BatchPlan`], and writes.
    fn attempt(
        &self,
        batch: &[Deduction],
        guard: BatchGuard,
    ) -> impl Future<Output = Result<BatchAttempt, StoreError>> + Send;

    /// Makes one deduction, like [`SqlMethod::Guarded`](super::SqlMethod::Guarded).
    fn alone(&self, deduction: &Deduction) -> impl Future<Output = BatchAnswer> + Send;

    /// Writes the sales of each plan whose row is not locked and whose units are available, in one
    /// transaction. The plans are of different levels and have sales. Returns the units that are available
    /// after each, or `None` for a plan that was left out. Returns `None` for all if an index of the ledger
    /// refused a sale.
    fn write_merged(
        &self,
        plans: &[&BatchPlan<'_>],
    ) -> impl Future<Output = Result<Option<Vec<Option<i64>>>, StoreError>> + Send;

    /// The movements that the ledger has of the operations and keys of the plans' sales.
    fn recorded_sales(
        &self,
        plans: &[&BatchPlan<'_>],
    ) -> impl Future<Output = Result<Vec<Movement>, StoreError>> + Send;
}

/// What protects the write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchGuard {
    /// All units of the batch are available. Nothing is read before.
    Available,
    /// The level has the version that was read.
    Version,
    /// The row is locked from the reading to the commit.
    RowLock,
}

/// How an attempt to make a batch ended.
#[derive(Debug)]
pub enum BatchAttempt {
    /// Each deduction has its answer.
    Answered(Vec<BatchAnswer>),
    /// The guard does not hold, or the attempt has expired.
    Conflict,
    /// An index of the ledger refused a sale.
    Duplicate,
    /// Another transaction is recording the key of a sale, or the database refuses a row. So each is
    /// made alone, and only the one that is concerned gets the error.
    Alone,
}

/// Makes each deduction of a batch, and answers each by itself. `read_first`: some of them will probably be
/// refused, so the first attempt is not made blindly.
pub async fn deduct_batch<S: BatchStore>(
    store: &S,
    batch: &[Deduction],
    read_first: bool,
) -> Vec<BatchAnswer> {
    let (mut conflicts, mut duplicates) = (0, 0);
    let mut guard = if read_first {
        BatchGuard::Version
    } else {
        BatchGuard::Available
    };
    while batch.len() > 1 && duplicates < DUPLICATES {
        match (store.attempt(batch, guard).await, guard) {
            (Ok(BatchAttempt::Answered(answers)), _) => return answers,
            (Ok(BatchAttempt::Alone), _) | (Ok(BatchAttempt::Conflict), BatchGuard::RowLock) => {
                break;
            }
            (Ok(_), BatchGuard::Available) => guard = BatchGuard::Version,
            (Ok(BatchAttempt::Conflict), BatchGuard::Version) => conflicts += 1,
            (Ok(BatchAttempt::Duplicate), _) => duplicates += 1,
            (Err(mut error), _) => return batch.iter().map(|_| Err(error.share())).collect(),
        }
        if conflicts >= CONFLICTS {
            guard = BatchGuard::RowLock;
        }
    }
    let mut answers = Vec::with_capacity(batch.len());
    if batch.len() > ALONE {
        for part in batch.chunks(ALONE) {
            answers.extend(Box::pin(deduct_batch(store, part, read_first)).await);
        }
        return answers;
    }
    let mut waits = 0;
    for deduction in batch {
        let answer = store.alone(deduction).await;
        waits += match answer {
            Err(StoreError::LockWait(_)) => WAITS,
            Err(StoreError::KeyInFlight(_) | StoreError::Unexpected(_)) => 1,
            _ => 0,
        };
        answers.push(answer);
        if waits >= WAITS {
            // Each of the others might end like that. They were not attempted.
            break;
        }
    }
    answers.resize_with(batch.len(), || Ok(AttemptOutcome::Conflict));
    answers
}

/// What becomes of the deductions of a batch, if the sales among them are committed.
#[derive(Debug)]
pub struct BatchPlan<'a> {
    /// The deductions to make, in the order of their arrival.
    pub sales: Vec<BatchSale<'a>>,
    /// The level that was read.
    pub read: Option<StockLevel>,
    /// One for each deduction.
    decisions: Vec<Decision>,
}

/// A deduction that is to be made.
#[derive(Debug)]
pub struct BatchSale<'a> {
    /// The request.
    pub deduction: &'a Deduction,
    /// The units of the sales up to this one.
    pub units: i64,
}

#[derive(Debug)]
enum Decision {
    /// True even if no sale is committed.
    Final(AttemptOutcome),
    /// An outcome that follows from the sales before it.
    AfterSales(AttemptOutcome),
    /// A sale, and the units of the sales up to this one.
    Sale(i64),
}

impl<'a> BatchPlan<'a> {
    /// Assumes that the units of all deductions are available, and that the ledger has none of them.
    #[must_use]
    pub fn unread(batch: impl IntoIterator<Item = &'a Deduction>) -> Self {
        Self::decide(&Recorded::new(&[]), batch, |_| Ok(()))
    }

    /// Decides on the level as it was read, and on the movements that the ledger has of the
    /// operations and keys of the batch. They must not have been read before the level: the sale of
    /// the last unit must be among them if the level shows it.
    #[must_use]
    pub fn new(
        read: Option<StockLevel>,
        recorded: &[Movement],
        batch: impl IntoIterator<Item = &'a Deduction>,
    ) -> Self {
        let mut level = read.clone();
        let plan = Self::decide(&Recorded::new(recorded), batch, |units| {
            AttemptOutcome::decide(level.as_ref(), units).map_err(unrecorded)?;
            level.as_mut().ok_or(AttemptOutcome::UnknownSku)?.on_hand -= units;
            Ok(())
        });
        Self { read, ..plan }
    }

    /// `take`: takes units, or refuses.
    fn decide(
        recorded: &Recorded<'_>,
        batch: impl IntoIterator<Item = &'a Deduction>,
        mut take: impl FnMut(i64) -> Result<(), AttemptOutcome>,
    ) -> Self {
        let mut plan = Self {
            sales: Vec::new(),
            read: None,
            decisions: Vec::new(),
        };
        let mut sold = Identities::default();
        let too_soon = Instant::now() + LAST_MOMENT;
        for deduction in batch {
            let decision = if let Some(movement) = recorded.find(deduction) {
                Decision::Final(AttemptOutcome::Recorded(Box::new(movement.clone())))
            } else if sold.has(deduction) {
                Decision::AfterSales(AttemptOutcome::Duplicate)
            } else if deduction.deadline < too_soon {
                Decision::Final(AttemptOutcome::Conflict)
            } else {
                match take(deduction.quantity.units()) {
                    Ok(()) => {
                        sold.add(deduction);
                        plan.sell(deduction)
                    }
                    Err(refusal) if plan.sales.is_empty() => Decision::Final(refusal),
                    Err(refusal) => Decision::AfterSales(refusal),
                }
            };
            plan.decisions.push(decision);
        }
        plan
    }

    fn sell(&mut self, deduction: &'a Deduction) -> Decision {
        let units = self.units() + deduction.quantity.units();
        self.sales.push(BatchSale { deduction, units });
        Decision::Sale(units)
    }

    /// The units of all sales.
    fn units(&self) -> i64 {
        self.sales.last().map_or(0, |sale| sale.units)
    }

    /// When the attempt expires: with its earliest sale.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let deadlines = self.sales.iter().map(|sale| sale.deduction.deadline);
        deadlines.min().unwrap_or_else(Instant::now)
    }

    /// The answers, if there are no sales.
    #[must_use]
    pub fn without_sales(self) -> Vec<BatchAnswer> {
        self.committed(0)
    }

    /// The answers, if the sales are committed and leave `available` units.
    #[must_use]
    pub fn committed(self, available: i64) -> Vec<BatchAnswer> {
        let before = available + self.units();
        let outcome = |decision| match decision {
            Decision::Final(outcome) | Decision::AfterSales(outcome) => Ok(outcome),
            Decision::Sale(units) => Ok(AttemptOutcome::Deducted {
                remaining: before - units,
            }),
        };
        self.decisions.into_iter().map(outcome).collect()
    }

    /// The answers, if the write of the sales ended with `error`. A deduction that is no sale was not
    /// attempted then, and can be attempted again.
    #[must_use]
    pub fn failed(self, mut error: StoreError) -> Vec<BatchAnswer> {
        let answer = |decision| match decision {
            Decision::Final(outcome) => Ok(outcome),
            Decision::Sale(_) => Err(error.share()),
            Decision::AfterSales(_) => Ok(AttemptOutcome::Conflict),
        };
        self.decisions.into_iter().map(answer).collect()
    }
}

/// The refusal of a deduction that is not among the recorded ones.
fn unrecorded(refusal: AttemptOutcome) -> AttemptOutcome {
    match refusal {
        AttemptOutcome::Insufficient { available } => AttemptOutcome::Unrecorded { available },
        other => other,
    }
}

/// The movements that the ledger has.
pub(super) struct Recorded<'a> {
    operations: HashMap<OperationId, &'a Movement>,
    keys: HashMap<(&'a str, &'a str), &'a Movement>,
}

impl<'a> Recorded<'a> {
    pub(super) fn new(movements: &'a [Movement]) -> Self {
        let with_key = |movement: &'a Movement| {
            let key = movement.idempotency_key.as_deref()?;
            Some(((&*movement.caller, key), movement))
        };
        Self {
            operations: movements.iter().map(|one| (one.operation, one)).collect(),
            keys: movements.iter().filter_map(with_key).collect(),
        }
    }

    pub(super) fn find(&self, deduction: &Deduction) -> Option<&'a Movement> {
        let by_key = || self.keys.get(&key(deduction.idempotency.as_ref()?));
        let by_operation = self.operations.get(&deduction.operation);
        by_operation.or_else(by_key).copied()
    }
}

/// The operations and keys of the sales.
#[derive(Default)]
struct Identities<'a> {
    operations: HashSet<OperationId>,
    keys: HashSet<(&'a str, &'a str)>,
}

impl<'a> Identities<'a> {
    fn has(&self, deduction: &Deduction) -> bool {
        let idempotency = deduction.idempotency.as_ref();
        self.operations.contains(&deduction.operation)
            || idempotency.is_some_and(|one| self.keys.contains(&key(one)))
    }

    fn add(&mut self, deduction: &'a Deduction) {
        self.operations.insert(deduction.operation);
        self.keys.extend(deduction.idempotency.as_ref().map(key));
    }
}

/// The values of the ledger's unique index.
fn key(idempotency: &Idempotency) -> (&str, &str) {
    (idempotency.caller.as_str(), idempotency.key.as_str())
}

#[cfg(test)]
mod tests;
