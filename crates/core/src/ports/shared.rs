//! Makes operations of several levels in one transaction, which waits for no row.
//!
//! If each is a deduction of one level, nothing is read. A level whose row is locked, or that has too few units,
//! is left out; so is one of which the ledger has an operation. Otherwise the rows that are free are locked, and
//! the operations that miss none are planned. What is left out is made by another attempt.
//!
//! Levels are locked in any order. No deadlock follows from that, because no lock is waited for.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Once;

use tokio::time::Instant;

use super::{AttemptOutcome, BatchAnswer, BatchAttempt, BatchStore, StoreError};
use crate::plan::{Plan, Recorded};
use crate::stock::{Operation, Sku, Warehouse};

/// How often deductions are sent: again without the levels whose operations the ledger has.
const ATTEMPTS: u32 = 2;

/// What a transaction of several levels made of an operation.
#[derive(Debug)]
pub enum SharedAnswer {
    /// Its answer.
    Made(BatchAnswer),
    /// It was not made: another transaction has locked the row of this one of [`Operation::levels`].
    Missed(usize),
    /// It was not made: an attempt without the others decides.
    Apart,
}

/// Makes operations of several levels.
pub async fn write_shared<S: BatchStore>(
    store: &S,
    operations: &[Operation],
    briefly: bool,
) -> Vec<SharedAnswer> {
    let mut all = operations.iter();
    if all.all(|operation| operation.as_deduction().is_some()) {
        deduct(store, operations).await
    } else {
        lock_and_write(store, operations, briefly).await
    }
}

/// Locks the rows, reads, plans, and writes.
async fn lock_and_write<S: BatchStore>(
    store: &S,
    operations: &[Operation],
    briefly: bool,
) -> Vec<SharedAnswer> {
    let is_alone = operations.len() == 1;
    let (missed, attempt) = match store.attempt_free(operations, briefly).await {
        Ok(attempt) => attempt,
        Err(error) if !is_alone && may_be_of_one(&error) => {
            log(&error);
            return operations.iter().map(|_| SharedAnswer::Apart).collect();
        }
        Err(error) => {
            let answer = |_| SharedAnswer::Made(Err(error.clone()));
            return operations.iter().map(answer).collect();
        }
    };
    let answers = match attempt {
        BatchAttempt::Answered(answers) => answers,
        BatchAttempt::Duplicate if is_alone => vec![Ok(AttemptOutcome::Duplicate)],
        BatchAttempt::Conflict if is_alone => vec![Ok(AttemptOutcome::Conflict)],
        BatchAttempt::Duplicate | BatchAttempt::Conflict | BatchAttempt::Alone => Vec::new(),
    };
    let mut answers = answers.into_iter();
    let answer = |level: Option<usize>| match level {
        Some(level) => SharedAnswer::Missed(level),
        None => answers
            .next()
            .map_or(SharedAnswer::Apart, SharedAnswer::Made),
    };
    missed.into_iter().map(answer).collect()
}

/// Makes deductions of one level each without a snapshot.
async fn deduct<S: BatchStore>(store: &S, operations: &[Operation]) -> Vec<SharedAnswer> {
    let mut left_out = HashSet::new();
    for _ in 0..ATTEMPTS {
        let is_chosen = |operation: &&Operation| !left_out.contains(&operation.level());
        let plan = Plan::unread(operations.iter().filter(is_chosen), Instant::now(), 0);
        let answers = match store.write_free_levels(&plan).await {
            Ok(Some(available)) => plan.committed(&available),
            Ok(None) => {
                let before = left_out.len();
                match recorded_levels(store, operations).await {
                    Ok(recorded) => left_out.extend(recorded),
                    Err(error) => {
                        log(&error);
                        break;
                    }
                }
                if left_out.len() == before {
                    // What the index refused is no longer in the ledger, or belongs to other operations.
                    break;
                }
                continue;
            }
            Err(error) if may_be_of_one(&error) => {
                log(&error);
                break;
            }
            Err(error) => plan.failed(&error).into_iter().map(Some).collect(),
        };
        let mut answers = answers.into_iter();
        let answer = |operation: &Operation| {
            let answer = is_chosen(&operation).then(|| answers.next());
            let answer = answer.flatten().flatten();
            answer.map_or(SharedAnswer::Apart, SharedAnswer::Made)
        };
        return operations.iter().map(answer).collect();
    }
    operations.iter().map(|_| SharedAnswer::Apart).collect()
}

/// The levels of the operations that the ledger has.
async fn recorded_levels<'a, S: BatchStore>(
    store: &S,
    operations: &'a [Operation],
) -> Result<Vec<(&'a Sku, &'a Warehouse)>, StoreError> {
    let all: Vec<_> = operations.iter().collect();
    let found = store.recorded_among(&all).await?;
    let recorded = Recorded::new(&found);
    let operations = operations.iter();
    let recorded = operations.filter(|one| recorded.find(one).is_some());
    Ok(recorded.map(Operation::level).collect())
}

/// Whether the cause may be one row, one key or one SKU's share of the connections.
fn may_be_of_one(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Aborted(_)
            | StoreError::LockWait(_)
            | StoreError::TooSlow(_)
            | StoreError::KeyInFlight(_)
            | StoreError::Exhausted
            | StoreError::Unexpected(_)
            | StoreError::Bug(_)
    )
}

/// A defect is a warning once. If it is of one row, the request concerned reports it each time.
fn log(error: &StoreError) {
    static DEFECT: Once = Once::new();
    let cause = error.source().map(ToString::to_string);
    if matches!(error, StoreError::Bug(_)) {
        DEFECT.call_once(|| {
            tracing::warn!(%error, cause, "operations of several levels are made apart");
        });
    }
    tracing::debug!(%error, cause, "operations of several levels are made apart");
}
