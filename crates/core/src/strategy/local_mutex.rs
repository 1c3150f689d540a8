//! `local-mutex`: a mutex in this process around the same read, check, write as `no-lock`.
//!
//! *Guarantees*: exact while a single process sells and no outcome is unknown; nothing with two processes.
//! *Costs*: one read and one transaction under the mutex; deductions of one SKU in one process take turns.
//! *Fails when*: a second replica runs: each replica has its own mutex, and both read the same level.
//! *Use when*: you want to see that a lock which other processes cannot see protects nothing; never with real stock.

use super::{DeductionRun, no_lock};
use crate::ports::{AttemptOutcome, StoreError};

/// The attempt of `no-lock`, with the mutex held until the outcome of the commit is known.
pub(super) async fn attempt(run: &DeductionRun<'_>) -> Result<AttemptOutcome, StoreError> {
    let policy = &run.context.policy;
    let limit = policy.sleep.sleep(policy.wait_limit);
    let Some(_held) = run.context.mutexes.lock(run.deduction, limit).await else {
        return Err(StoreError::LockWait("the local mutex stayed locked".into()));
    };
    no_lock::attempt(run).await
}
