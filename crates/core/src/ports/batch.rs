//! Makes a batch of operations of one level, as if they came one after the other.
//!
//! The first attempt at deductions reads nothing: it takes all units at once, on condition that they are
//! available. If that is refused, the store reads the level and the ledger, plans each operation, and writes the level on
//! condition that its version is still the one that was read. So a refusal is never based on an older
//! level. If other replicas change the level first, it is read again; after that the row is locked from the
//! reading to the commit.
//!
//! No operation fails because of another one. If an index of the ledger refuses the batch although the
//! ledger was asked, another request has just recorded a key: the ledger is asked again, and then each
//! operation is made alone. A large batch is divided first.

use super::{AttemptOutcome, BatchAnswer, StoreError};
use crate::plan::Plan;
use crate::stock::{Movement, Operation};

/// How many conditional writes may lose against other replicas before the row is locked.
const CONFLICTS: u32 = 2;

/// After this many waits for keys in other transactions, or one wait for the level, the rest of a batch
/// is not made alone: each wait takes the whole wait limit. An unknown error counts as a wait: it may be
/// of the server and not of the row.
const WAITS: u32 = 2;

/// How often the ledger may refuse a batch before each operation is made alone.
const DUPLICATES: u32 = 2;

/// How many operations at most are made alone one after the other. The callers of all of them wait, and
/// each takes a commit.
const ALONE: usize = 256;

/// How a store makes operations: it reads a snapshot, decides with [`Plan`], and writes.
pub trait BatchStore: Sync {
    /// Makes operations of one level, and answers each.
    fn attempt(
        &self,
        batch: &[Operation],
        guard: BatchGuard,
    ) -> impl Future<Output = Result<BatchAttempt, StoreError>> + Send;

    /// Makes one operation. A deduction is one guarded write.
    fn alone(&self, operation: &Operation) -> impl Future<Output = BatchAnswer> + Send;

    /// Makes operations of several levels in one transaction that locks the rows: those that no other has
    /// locked, or `briefly` waits for them. Returns for each operation the level (of
    /// [`Operation::levels`]) whose row is locked by another,
    /// and how the attempt at those that miss none has ended.
    fn attempt_free(
        &self,
        operations: &[Operation],
        briefly: bool,
    ) -> impl Future<Output = Result<(Vec<Option<usize>>, BatchAttempt), StoreError>> + Send;

    /// Writes each level of the plan whose row is not locked and whose units are available, with its
    /// movements, in one transaction. Returns the units that are available after each, or `None` for a level
    /// that was left out. Returns `None` for all if an index of the ledger refused a movement.
    fn write_free_levels(
        &self,
        plan: &Plan<'_>,
    ) -> impl Future<Output = Result<Option<Vec<Option<i64>>>, StoreError>> + Send;

    /// The movements that the ledger has of the operations and of their keys.
    fn recorded_among(
        &self,
        operations: &[&Operation],
    ) -> impl Future<Output = Result<Vec<Movement>, StoreError>> + Send;
}

/// What protects the write of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BatchGuard {
    /// All units of the batch are available. Nothing is read before.
    Available,
    /// The level has the version that was read.
    Version,
    /// The row is locked from the reading to the commit. Only the level is read: that the lines of holds are open,
    /// and that the ledger has none of the operations, are conditions of the write.
    OpenLines,
    /// The row is locked from the reading to the commit.
    RowLock,
}

/// How an attempt to make a batch ended.
#[derive(Debug)]
pub enum BatchAttempt {
    /// Each operation has its answer.
    Answered(Vec<BatchAnswer>),
    /// The guard does not hold, or the attempt has expired.
    Conflict,
    /// An index of the ledger refused a movement.
    Duplicate,
    /// Another transaction is recording the key of an operation, or the database refuses a row. So each is
    /// made alone, and only the one that is concerned gets the error.
    Alone,
}

/// Makes each operation of a batch, and answers each by itself. `read_first`: some of them will probably be
/// refused, so the first attempt is not made blindly.
pub async fn write_batch<S: BatchStore>(
    store: &S,
    batch: &[Operation],
    read_first: bool,
) -> Vec<BatchAnswer> {
    let (mut conflicts, mut duplicates) = (0, 0);
    let sells_only = batch.iter().all(|one| one.as_deduction().is_some());
    // The rules of others need what only a locked read has.
    let read = if sells_only {
        BatchGuard::Version
    } else {
        BatchGuard::RowLock
    };
    let mut guard = read;
    let may_be_refused = read_first && batch.iter().any(Operation::needs_only_units);
    if !may_be_refused && batch.iter().all(Operation::needs_only_its_level) {
        guard = if batch.iter().all(Operation::needs_only_units) {
            BatchGuard::Available
        } else {
            BatchGuard::OpenLines
        };
    }
    while batch.len() > 1 && duplicates < DUPLICATES {
        match (store.attempt(batch, guard).await, guard) {
            (Ok(BatchAttempt::Answered(answers)), _) => return answers,
            (Ok(BatchAttempt::Alone), _) | (Ok(BatchAttempt::Conflict), BatchGuard::RowLock) => {
                break;
            }
            (Ok(_), BatchGuard::Available | BatchGuard::OpenLines) => guard = read,
            (Ok(BatchAttempt::Conflict), BatchGuard::Version) => conflicts += 1,
            (Ok(BatchAttempt::Duplicate), _) => duplicates += 1,
            (Err(error), _) => return vec![Err(error); batch.len()],
        }
        if conflicts >= CONFLICTS {
            guard = BatchGuard::RowLock;
        }
    }
    let mut answers = Vec::with_capacity(batch.len());
    if batch.len() > ALONE {
        for part in batch.chunks(ALONE) {
            answers.extend(Box::pin(write_batch(store, part, read_first)).await);
        }
        return answers;
    }
    let mut waits = 0;
    for operation in batch {
        let answer = store.alone(operation).await;
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

#[cfg(test)]
mod tests;
