//! Makes operations of several levels in one transaction, which waits for no row.
//!
//! A level that the transaction leaves out is written alone afterwards, so this function never decides on a
//! refusal. If the ledger has an operation, the levels concerned are left out, and the others are written.
//!
//! Levels are locked in any order. No deadlock follows from that, because no lock is waited for.

use std::collections::HashSet;
use std::error::Error as _;
use std::sync::Once;

use tokio::time::Instant;

use super::{BatchStore, StoreError};
use crate::plan::{Plan, PlanAnswers, Recorded};
use crate::stock::{Operation, Sku, Warehouse};

/// How often the movements are sent: again without the levels whose operations the ledger has.
const ATTEMPTS: u32 = 2;

/// Makes deductions of several levels. `None` for one that has a level which was left out: it was not made.
pub async fn write_levels<S: BatchStore>(store: &S, operations: &[&Operation]) -> PlanAnswers {
    let mut left_out = HashSet::new();
    for _ in 0..ATTEMPTS {
        let chosen = operations.iter().copied();
        let chosen = chosen.filter(|one| !concerns(one, &left_out));
        let plan = Plan::unread(chosen, Instant::now());
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
                    // Whatever the index has refused is gone, or is not of these operations.
                    break;
                }
                continue;
            }
            // One row, one key or one SKU's share of the connections may be the cause.
            Err(
                error @ (StoreError::Aborted(_)
                | StoreError::LockWait(_)
                | StoreError::TooSlow(_)
                | StoreError::KeyInFlight(_)
                | StoreError::Exhausted
                | StoreError::Unexpected(_)
                | StoreError::Bug(_)),
            ) => {
                log(&error);
                break;
            }
            Err(error) => plan.failed(error).into_iter().map(Some).collect(),
        };
        let mut answers = answers.into_iter();
        let answer = |operation: &&Operation| {
            let was_chosen = !concerns(operation, &left_out);
            was_chosen.then(|| answers.next()).flatten().flatten()
        };
        return operations.iter().map(answer).collect();
    }
    operations.iter().map(|_| None).collect()
}

/// The levels of the operations that the ledger has.
async fn recorded_levels<'a, S: BatchStore>(
    store: &S,
    operations: &[&'a Operation],
) -> Result<Vec<(&'a Sku, &'a Warehouse)>, StoreError> {
    let found = store.recorded_among(operations).await?;
    let recorded = Recorded::new(&found);
    let operations = operations.iter().copied();
    let recorded = operations.filter(|one| recorded.find(one).is_some());
    Ok(recorded.flat_map(levels).collect())
}

fn levels(operation: &Operation) -> impl Iterator<Item = (&Sku, &Warehouse)> {
    let lines = operation.lines.iter();
    lines.map(|line| (&line.sku, &line.warehouse))
}

/// Whether one of the operation's levels is among these.
fn concerns(operation: &Operation, left_out: &HashSet<(&Sku, &Warehouse)>) -> bool {
    levels(operation).any(|level| left_out.contains(&level))
}

/// A defect is a warning once. If it is of one row, the request concerned reports it each time.
fn log(error: &StoreError) {
    static DEFECT: Once = Once::new();
    let cause = error.source().map(ToString::to_string);
    if matches!(error, StoreError::Bug(_)) {
        DEFECT.call_once(|| {
            tracing::warn!(%error, cause, "batches of several levels are made alone");
        });
    }
    tracing::debug!(%error, cause, "batches of several levels are made alone");
}
