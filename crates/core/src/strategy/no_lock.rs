//! `no-lock`: read, check, write, with no protection in between.
//!
//! *Guarantees*: nothing; movement and level still commit together, so the audit shows the lost updates.
//! *Costs*: one read and one transaction; no request waits for the decision of another.
//! *Fails when*: two requests read the same level: each overwrites it with its own result, so the level misses one sale.
//! *Use when*: you want to see an oversell; never with real stock.

use super::DeductionRun;
use super::read_check::read_check_write;
use crate::ports::{AttemptOutcome, Condition, StoreError};

/// Reads the level, checks it, overwrites it.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    read_check_write(run, Condition::None, || false).await
}
