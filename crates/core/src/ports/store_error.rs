//! Why a store could not carry an operation out, and what the caller is answered then.

use std::error::Error;
use std::fmt;
use std::mem;
use std::sync::Arc;

use super::Expiry;
use crate::names::named;
use crate::stock::StockError;

/// A driver's error, opaque to everything outside the stores.
pub type DriverError = Box<dyn Error + Send + Sync>;

named! {
    /// The server that an error came from, by its name in messages.
    pub enum Server {
        /// The SQL database.
        Database = "the database",
        /// The Redis that holds stock.
        Redis = "Redis",
    }
}

/// Why a store could not carry an operation out, sorted by what to do about it.
///
/// Only [`StoreError::OutcomeUnknown`] leaves open whether the operation happened; after all others
/// nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Deadlock or serialization failure: try the whole transaction again.
    #[error("the transaction was rolled back and can be tried again")]
    Aborted(#[source] DriverError),
    /// The connection was lost before COMMIT was sent: try again on another one.
    #[error("the connection to {0} was lost")]
    ConnectionLost(Server, #[source] DriverError),
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
    /// All connections for `WATCH` stayed busy for the wait limit.
    #[error("every redis connection for WATCH is busy")]
    RedisExhausted,
    /// The journal holds as many movements as `JOURNAL_LIMIT` allows.
    #[error("the journal is full")]
    JournalFull,
    /// The journals take as many bytes as `JOURNAL_LIMIT_BYTES` allows.
    #[error("the journals take too many bytes")]
    JournalBytesFull,
    /// Redis has almost no memory left.
    #[error("redis has almost used up its maxmemory")]
    MemoryFull,
    /// The SKU's home is Redis, and no Redis is configured.
    #[error("no redis is configured")]
    NoRedis,
    /// The stock of this ledger is not in this Redis. Says why, and what to do.
    #[error("{0}")]
    NotBound(String),
    /// The server does not answer, or refuses to work.
    #[error("{0} is not available")]
    Unavailable(Server, #[source] DriverError),
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

impl StoreError {
    /// The same error for another caller.
    #[must_use]
    pub fn share(&mut self) -> Self {
        match self {
            Self::Aborted(source) => Self::Aborted(share(source)),
            Self::ConnectionLost(server, source) => Self::ConnectionLost(*server, share(source)),
            Self::LockWait(source) => Self::LockWait(share(source)),
            Self::TooSlow(source) => Self::TooSlow(share(source)),
            Self::KeyInFlight(source) => Self::KeyInFlight(share(source)),
            Self::Exhausted => Self::Exhausted,
            Self::Queued => Self::Queued,
            Self::RedisExhausted => Self::RedisExhausted,
            Self::JournalFull => Self::JournalFull,
            Self::JournalBytesFull => Self::JournalBytesFull,
            Self::MemoryFull => Self::MemoryFull,
            Self::NotBound(problem) => Self::NotBound(problem.clone()),
            Self::NoRedis => Self::NoRedis,
            Self::Unavailable(server, source) => Self::Unavailable(*server, share(source)),
            Self::OutcomeUnknown(source, expiry) => Self::OutcomeUnknown(share(source), *expiry),
            Self::Bug(source) => Self::Bug(share(source)),
        }
    }
}

/// A driver's error that several callers get.
#[derive(Debug, Clone)]
struct Shared(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Shared {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

fn share(source: &mut DriverError) -> DriverError {
    if let Some(shared) = source.downcast_ref::<Shared>() {
        return Box::new(shared.clone());
    }
    let shared = Shared(mem::replace(source, "shared".into()).into());
    *source = Box::new(shared.clone());
    Box::new(shared)
}

impl From<StoreError> for StockError {
    /// The answer when no further attempt is made.
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::ConnectionLost(server, source)
            | StoreError::Unavailable(server, source) => Self::Unavailable {
                what: server.as_str(),
                source: Some(source),
            },
            StoreError::Aborted(_) | StoreError::TooSlow(_) => Self::Unavailable {
                what: Server::Database.as_str(),
                source: Some(error.into()),
            },
            StoreError::NoRedis => Self::HomeUnavailable {
                reason: "stock that lives in Redis needs a Redis: set REDIS_URL".to_owned(),
            },
            StoreError::NotBound(reason) => Self::HomeUnavailable { reason },
            StoreError::JournalFull => Self::Overloaded {
                what: "as many movements wait for the SQL ledger as JOURNAL_LIMIT allows",
            },
            StoreError::JournalBytesFull => Self::Overloaded {
                what: "the movements that wait for the SQL ledger take as many bytes of Redis as \
                       JOURNAL_LIMIT_BYTES allows",
            },
            StoreError::MemoryFull => Self::Overloaded {
                what: "Redis has used up 90 percent of its memory (maxmemory)",
            },
            StoreError::LockWait(_) => Self::Contended { attempts: 1 },
            StoreError::KeyInFlight(_) => Self::RequestInFlight,
            StoreError::Exhausted => Self::Overloaded {
                what: "every database connection is busy",
            },
            StoreError::Queued => Self::Overloaded {
                what: "the database does not commit the deductions of this SKU within WAIT_LIMIT_MS",
            },
            StoreError::RedisExhausted => Self::Overloaded {
                what: "every connection to Redis that REDIS_POOL_SIZE allows is busy",
            },
            StoreError::OutcomeUnknown(source, _) => Self::OutcomeUnknown { source },
            StoreError::Bug(source) => Self::Internal {
                what: source.to_string(),
            },
        }
    }
}
