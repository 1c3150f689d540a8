//! The pool of a database server's connections.
//!
//! sqlx has a pool of its own, which asks each connection that comes back whether it is still
//! there, and must in addition be told to roll back each time: 0.9.0 can hand out a connection that
//! is still inside a transaction whose `begin` was abandoned, and what is then acknowledged on it
//! is never committed (<https://github.com/transact-rs/sqlx/issues/4385>). That is two round trips
//! for each deduction, which itself may need no more than one.
//!
//! So the connections are sqlx's, the pool is deadpool's, and a [`Lease`] knows what became of its
//! connection: one on which everything was answered goes back as it is; any other, also one whose
//! user was dropped amid a statement, is rolled back first, and closed if that fails.

use std::time::Duration;

use super::StoreError;
use super::driver_error::{Verdict, before_commit, classify};

mod lease;
mod pulse;
mod server;

pub(super) use lease::{Lease, Transaction};
pub(super) use pulse::Pulse;
pub(super) use server::{Pool, Server};

/// How long a statement may take until the server ends it: a lock wait in the unit of the coarsest
/// server, whole seconds rounded up, and a moment for the work. (`MySQL` so ends only what reads;
/// what writes there is bounded by its lock waits.)
pub(super) fn statement_limit(wait_limit: Duration) -> Duration {
    Duration::from_secs(lock_wait_seconds(wait_limit)) + Duration::from_millis(500)
}

/// The wait limit in whole seconds, rounded up, at least one: a server takes zero for "never".
pub(super) fn lock_wait_seconds(wait_limit: Duration) -> u64 {
    let seconds = wait_limit.as_secs() + u64::from(wait_limit.subsec_nanos() > 0);
    seconds.max(1)
}

/// What an error before COMMIT means, where it is neither a duplicate nor a violated CHECK.
pub(super) fn failed(error: sqlx::Error) -> StoreError {
    before_commit(error)
}

/// What the ledger's answer to an `INSERT` means: whether the movement is new to it.
///
/// A lock that was waited for in vain there, with a key present, is that of another transaction
/// that is recording the same key.
pub(super) fn recorded(
    inserted: Result<(), sqlx::Error>,
    with_key: bool,
) -> Result<bool, StoreError> {
    let Err(error) = inserted else {
        return Ok(true);
    };
    match classify(&error) {
        Verdict::Duplicate => Ok(false),
        Verdict::RollBackThenRetry if with_key => Err(StoreError::KeyInFlight(Box::new(error))),
        _ => Err(failed(error)),
    }
}

/// A row that was absent when it was read and is there now: another transaction was faster.
pub(super) fn conflict_if_duplicate(
    error: sqlx::Error,
    otherwise: impl FnOnce(sqlx::Error) -> StoreError,
) -> StoreError {
    if classify(&error) == Verdict::Duplicate {
        return StoreError::Aborted(Box::new(error));
    }
    otherwise(error)
}
