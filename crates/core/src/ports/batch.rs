//! Decides a batch of deductions of one level, as if they came one after the other.
//!
//! The store reads the level and the ledger, and writes the level on condition that its version is
//! still the one that was read. So a decision is never based on an older level. If other replicas
//! change the level first, it is read again; after that the row is locked from the reading to the
//! commit.
//!
//! No deduction fails because of another one. If an index of the ledger refuses the batch although
//! the ledger was asked, another request has just recorded a key: the ledger is asked again, and then
//! each deduction is made alone.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::{AttemptOutcome, StoreError};
use crate::stock::{Deduction, Durability, Idempotency, Movement, OperationId, StockLevel};

/// What the store answers to one deduction of a batch.
pub type BatchAnswer = Result<AttemptOutcome, StoreError>;

/// How many conditional writes may lose against other replicas before the row is locked.
const CONFLICTS: u32 = 2;

/// After this many waits for keys in other transactions, or one wait for the level, the rest of a batch
/// is not made alone: each wait takes the whole wait limit.
const WAITS: u32 = 2;

/// How often the ledger may refuse a batch before each deduction is made alone.
const DUPLICATES: u32 = 2;

/// A deduction whose caller is answered sooner is not attempted: the batch would expire with it.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// How a store makes a batch.
pub trait BatchStore: Sync {
    /// Reads, decides with [`BatchPlan`], and writes. `lock`: under the row's lock.
    fn attempt(
        &self,
        batch: &[Deduction],
        lock: bool,
    ) -> impl Future<Output = Result<BatchAttempt, StoreError>> + Send;

    /// Makes one deduction, like [`SqlMethod::Guarded`](super::SqlMethod::Guarded).
    fn alone(&self, deduction: &Deduction) -> impl Future<Output = BatchAnswer> + Send;
}

/// How an attempt to make a batch ended.
#[derive(Debug)]
pub enum BatchAttempt {
    /// Each deduction has its answer.
    Answered(Vec<BatchAnswer>),
    /// The level was changed after it was read, or the attempt has expired.
    Conflict,
    /// An index of the ledger refused a sale.
    Duplicate,
    /// Another transaction is recording the key of a sale, or the database refuses a row. So each is
    /// made alone, and only the one that is concerned gets the error.
    Alone,
}

/// Makes each deduction of a batch, and answers each by itself.
pub async fn deduct_batch<S: BatchStore>(store: &S, batch: &[Deduction]) -> Vec<BatchAnswer> {
    let (mut conflicts, mut duplicates) = (0, 0);
    while batch.len() > 1 && duplicates < DUPLICATES {
        let lock = conflicts >= CONFLICTS;
        match store.attempt(batch, lock).await {
            Ok(BatchAttempt::Answered(answers)) => return answers,
            Ok(BatchAttempt::Conflict) if lock => break,
            Ok(BatchAttempt::Conflict) => conflicts += 1,
            Ok(BatchAttempt::Duplicate) => duplicates += 1,
            Ok(BatchAttempt::Alone) => break,
            Err(mut error) => return batch.iter().map(|_| Err(error.share())).collect(),
        }
    }
    let mut answers = Vec::with_capacity(batch.len());
    let mut waits = 0;
    for deduction in batch {
        let answer = store.alone(deduction).await;
        waits += match answer {
            Err(StoreError::LockWait(_)) => WAITS,
            Err(StoreError::KeyInFlight(_)) => 1,
            _ => 0,
        };
        answers.push(answer);
        if waits >= WAITS {
            // Each of the others might wait as long. They were not attempted.
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
    /// One for each deduction.
    decisions: Vec<Decision>,
}

/// A deduction that is to be made.
#[derive(Debug)]
pub struct BatchSale<'a> {
    /// The request.
    pub deduction: &'a Deduction,
    /// The level after it.
    pub after: LevelAfter,
}

/// What a sale leaves of its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LevelAfter {
    /// Units on hand.
    pub on_hand: i64,
    /// Units available.
    pub available: i64,
    /// The version of the level, which is also the `level_version` of the movement.
    pub version: i64,
}

#[derive(Debug)]
enum Decision {
    /// True even if no sale is committed.
    Final(AttemptOutcome),
    /// One of the sales, or an outcome that follows from the sales before it.
    WithSales(AttemptOutcome),
}

impl<'a> BatchPlan<'a> {
    /// Decides on the level as it was read, and on the movements that the ledger has of the
    /// operations and keys of the batch. They must not have been read before the level: the sale of
    /// the last unit must be among them if the level shows it.
    #[must_use]
    pub fn new(
        read: Option<StockLevel>,
        recorded: &[Movement],
        batch: impl IntoIterator<Item = &'a Deduction>,
    ) -> Self {
        let recorded = Recorded::new(recorded);
        let mut level = read;
        let mut sold = Identities::default();
        let too_soon = Instant::now() + LAST_MOMENT;
        let (mut sales, mut decisions) = (Vec::new(), Vec::new());
        for deduction in batch {
            let units = deduction.quantity.units();
            let decision = if let Some(movement) = recorded.find(deduction) {
                Decision::Final(AttemptOutcome::Recorded(Box::new(movement.clone())))
            } else if sold.has(deduction) {
                Decision::WithSales(AttemptOutcome::Duplicate)
            } else if deduction.deadline < too_soon {
                Decision::Final(AttemptOutcome::Conflict)
            } else {
                match (AttemptOutcome::decide(level.as_ref(), units), &mut level) {
                    (Ok(remaining), Some(level)) => {
                        level.on_hand -= units;
                        level.version += 1;
                        let after = LevelAfter {
                            on_hand: level.on_hand,
                            available: remaining,
                            version: level.version,
                        };
                        sales.push(BatchSale { deduction, after });
                        sold.add(deduction);
                        Decision::WithSales(AttemptOutcome::Deducted {
                            remaining,
                            durability: Durability::Committed,
                        })
                    }
                    (Ok(_), None) => Decision::Final(AttemptOutcome::UnknownSku),
                    (Err(refusal), _) if sales.is_empty() => Decision::Final(refusal),
                    (Err(refusal), _) => Decision::WithSales(refusal),
                }
            };
            decisions.push(decision);
        }
        Self { sales, decisions }
    }

    /// When the attempt expires: with its earliest sale.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let deadlines = self.sales.iter().map(|sale| sale.deduction.deadline);
        deadlines.min().unwrap_or_else(Instant::now)
    }

    /// The answers, if the sales are committed or there are none.
    #[must_use]
    pub fn committed(self) -> Vec<BatchAnswer> {
        let outcome = |decision| match decision {
            Decision::Final(outcome) | Decision::WithSales(outcome) => Ok(outcome),
        };
        self.decisions.into_iter().map(outcome).collect()
    }

    /// The answers, if the write of the sales ended with `error`. A deduction that is no sale was not
    /// attempted then, and can be attempted again.
    #[must_use]
    pub fn failed(self, mut error: StoreError) -> Vec<BatchAnswer> {
        let answer = |decision| match decision {
            Decision::Final(outcome) => Ok(outcome),
            Decision::WithSales(AttemptOutcome::Deducted { .. }) => Err(error.share()),
            Decision::WithSales(_) => Ok(AttemptOutcome::Conflict),
        };
        self.decisions.into_iter().map(answer).collect()
    }
}

/// The movements that the ledger has.
struct Recorded<'a> {
    operations: HashMap<OperationId, &'a Movement>,
    keys: HashMap<(&'a str, &'a str), &'a Movement>,
}

impl<'a> Recorded<'a> {
    fn new(movements: &'a [Movement]) -> Self {
        let with_key = |movement: &'a Movement| {
            let key = movement.idempotency_key.as_deref()?;
            Some(((&*movement.caller, key), movement))
        };
        Self {
            operations: movements.iter().map(|one| (one.operation, one)).collect(),
            keys: movements.iter().filter_map(with_key).collect(),
        }
    }

    fn find(&self, deduction: &Deduction) -> Option<&'a Movement> {
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
