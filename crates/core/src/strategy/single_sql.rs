//! `single-sql`: one `UPDATE` that takes the units only if there are enough.
//!
//! *Guarantees*: never oversells: check and write are one statement, and the row lock orders them.
//! *Costs*: one round trip to a server; the row is locked from the `UPDATE` to the end of the commit, never during a round trip.
//! *Fails when*: one row is very hot: deductions queue for the commit; it never oversells.
//! *Use when*: no refusal may be 500 ms old, or the database commits single deductions fast enough.

use super::DeductionRun;
use crate::ports::{AttemptOutcome, StoreError};

/// The database checks and takes the units in one `UPDATE`.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    run.context.store.deduct(run.deduction).await
}
