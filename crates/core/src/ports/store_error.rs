//! Why a store could not carry an operation out, and what the caller is answered then.

use super::Expiry;
use crate::stock::{DriverError, StockError};

/// Why a store could not carry an operation out, sorted by what to do about it.
///
/// Only [`StoreError::OutcomeUnknown`] leaves open whether the operation happened; after all others
/// nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Deadlock or serialization failure: try the whole transaction again.
    #[error("the transaction was rolled back and can be tried again")]
    Aborted(#[source] DriverError),
    /// The connection was lost before COMMIT was sent: try again on another one.
    #[error("the connection to the database was lost")]
    ConnectionLost(#[source] DriverError),
    /// Waited for a row or for the single writer until the wait limit.
    #[error("a lock was not granted within the wait limit")]
    LockWait(#[source] DriverError),
    /// The database ended a statement because it took too long.
    #[error("the database did not finish in time")]
    TooSlow(#[source] DriverError),
    /// Waited until the limit for another transaction that is recording the same key.
    #[error("the same idempotency key is being recorded by a transaction that is still open")]
    KeyInFlight(#[source] DriverError),
    /// All connections of the pool stayed busy for the wait limit.
    #[error("every database connection is busy")]
    Exhausted,
    /// Waited until the limit for the batches of the level before it. Nothing was sent.
    #[error("the deductions of the level wait too long for their batch")]
    Queued,
    /// The server does not answer, or refuses to work.
    #[error("the database is not available")]
    Unavailable(#[source] DriverError),
    /// The database answered with an error that the store does not know. It may be of one row.
    #[error("the database answered with an unknown error")]
    Unexpected(#[source] DriverError),
    /// The connection was lost while a commit was in flight: it has happened, or may still happen
    /// until the attempt expires.
    #[error("the connection was lost during the commit")]
    OutcomeUnknown(#[source] DriverError, Expiry),
    /// A statement, a row or a constraint that should not be possible: a defect.
    #[error("the store met something that should not be possible")]
    Bug(#[source] DriverError),
}

impl StoreError {
    /// An unknown outcome that the next transaction to lock the level can see.
    pub fn outcome_unknown(source: impl Into<DriverError>) -> Self {
        Self::OutcomeUnknown(source.into(), Expiry::passed())
    }

    /// If the outcome is unknown, the attempt expires at `expiry`.
    #[must_use]
    pub fn expiring(self, expiry: Expiry) -> Self {
        match self {
            Self::OutcomeUnknown(source, _) => Self::OutcomeUnknown(source, expiry),
            known => known,
        }
    }
}

impl From<StoreError> for StockError {
    /// The answer when no further attempt is made.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::ConnectionLost(source) | StoreError::Unavailable(source) => {
                Self::Unavailable { source }
            }
            StoreError::Aborted(_) | StoreError::Unexpected(_) => Self::Unavailable {
                source: error.into(),
            },
            StoreError::TooSlow(source) => Self::TooSlow { source },
            StoreError::LockWait(_) => Self::Contended { attempts: 1 },
            StoreError::KeyInFlight(_) => Self::RequestInFlight,
            StoreError::Exhausted => Self::Overloaded {
                what: "every database connection is busy",
            },
            StoreError::Queued => Self::Overloaded {
                what: "the database does not commit the deductions of this SKU within WAIT_LIMIT_MS",
            },
            StoreError::OutcomeUnknown(source, _) => Self::OutcomeUnknown { source },
            StoreError::Bug(source) => Self::Internal {
                what: source.to_string(),
            },
        }
    }
}
