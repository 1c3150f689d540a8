//! `optimistic`: read the version, write only if the version is still the same, else retry.
//!
//! *Guarantees*: never oversells: a write that follows from an outdated read changes no row.
//! *Costs*: one read and one transaction per attempt; under contention most attempts are discarded.
//! *Fails when*: a row is hot: it may give up as contended (503) while other requests succeed; it never oversells.
//! *Use when*: conflicts are rare, or the caller needs long to decide and must not hold a lock.

use super::DeductionRun;
use super::read_check::read_check_write;
use crate::ports::{AttemptOutcome, Condition, StoreError};

/// One read and one conditional write. [`AttemptOutcome::Conflict`] asks for another attempt.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    read_check_write(run, Condition::Version, || false).await
}
