//! `for-update`: lock the row with `SELECT … FOR UPDATE`, check, write.
//!
//! *Guarantees*: never oversells: no other writer can change or lock the row before the commit.
//! *Costs*: one transaction of three statements; the row stays locked for three round trips; with single-sql for none.
//! *Fails when*: the network is slow: the row stays locked longer; if a client vanishes, the row stays locked until the server's timeout; it never oversells.
//! *Use when*: the decision between read and write needs code that one statement cannot express.

use super::DeductionRun;
use crate::ports::{AttemptOutcome, StoreError};

/// The store locks, reads, plans and writes in one transaction.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    run.context.store.write(run.deduction).await
}
