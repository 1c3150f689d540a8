//! Makes batches of several levels in one transaction, which waits for no row.
//!
//! A batch that the transaction leaves out is made alone afterwards, so this function never decides on a
//! refusal. If the ledger has a sale, the levels concerned are left out, and the others are written.
//!
//! Levels are locked in any order. No deadlock follows from that, because no lock is waited for.

use std::error::Error as _;
use std::sync::Once;

use super::batch::Recorded;
use super::{BatchAnswer, BatchPlan, BatchStore, StoreError};
use crate::stock::Deduction;

/// How often the sales are sent: again without the levels whose sales the ledger has.
const ATTEMPTS: u32 = 2;

/// Makes batches of different levels. `None` for a batch that was left out: nothing of it was made.
pub async fn deduct_merged<S: BatchStore>(
    store: &S,
    batches: &[Vec<Deduction>],
) -> Vec<Option<Vec<BatchAnswer>>> {
    let plans: Vec<_> = batches.iter().map(BatchPlan::unread).collect();
    let available = match write(store, &plans).await {
        Ok(available) => available,
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
            vec![None; plans.len()]
        }
        Err(mut error) => {
            let failed = plans.into_iter().map(|plan| plan.failed(error.share()));
            return failed.map(Some).collect();
        }
    };
    let answers = plans.into_iter().zip(available);
    let answers = answers.map(|(plan, available)| {
        if plan.sales.is_empty() {
            Some(plan.without_sales())
        } else {
            available.map(|available| plan.committed(available))
        }
    });
    answers.collect()
}

/// Writes the sales of the plans that have any. Returns the units that are available after each, or `None`
/// for a plan that was left out.
async fn write<S: BatchStore>(
    store: &S,
    plans: &[BatchPlan<'_>],
) -> Result<Vec<Option<i64>>, StoreError> {
    let mut available = vec![None; plans.len()];
    let mut left: Vec<_> = (0..plans.len()).collect();
    left.retain(|place| !plans[*place].sales.is_empty());
    for _ in 0..ATTEMPTS {
        let chosen: Vec<_> = left.iter().map(|place| &plans[*place]).collect();
        if chosen.is_empty() {
            break;
        }
        if let Some(written) = store.write_merged(&chosen).await? {
            for (place, units) in left.iter().zip(written) {
                available[*place] = units;
            }
            break;
        }
        let recorded = store.recorded_sales(&chosen).await?;
        let recorded = Recorded::new(&recorded);
        let has_recorded = |plan: &BatchPlan<'_>| {
            let mut sales = plan.sales.iter();
            sales.any(|sale| recorded.find(sale.deduction).is_some())
        };
        let before = left.len();
        left.retain(|place| !has_recorded(&plans[*place]));
        if left.len() == before {
            // Two of the levels have the same key.
            break;
        }
    }
    Ok(available)
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
