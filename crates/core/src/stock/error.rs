//! Why an operation on stock was not carried out, in terms that every caller can act on.

use std::error::Error;
use std::time::Duration;

use super::{Home, InvalidName};

/// Why stock was not changed, or why it is not known whether it was.
///
/// Only [`StockError::OutcomeUnknown`] leaves the outcome open; all others mean that nothing was
/// changed.
#[derive(Debug, thiserror::Error)]
pub enum StockError {
    /// There is no such SKU, or none in that warehouse.
    #[error("no such sku in that warehouse")]
    UnknownSku,
    /// Fewer units are available than were asked for.
    #[error("{requested} requested, {available} available")]
    Insufficient {
        /// Units asked for.
        requested: i64,
        /// Units that could have been had.
        available: i64,
    },
    /// The key was used for another request before.
    #[error("the idempotency key was used for another request")]
    IdempotencyKeyReused,
    /// The first request with that key is still running.
    #[error("a request with that idempotency key is still running")]
    RequestInFlight,
    /// The SKU's home is not the one that the strategy works on, or not the one asked for.
    #[error("the stock of this sku lives in {}", home.as_str())]
    WrongHome {
        /// Where the SKU's stock lives.
        home: Home,
    },
    /// The caller's precondition does not hold.
    #[error("the stock changed since it was read")]
    PreconditionFailed,
    /// The level asked for would break `on_hand - held >= -backorder_limit`.
    #[error("on_hand - held must not fall below -backorder_limit")]
    BelowLimit,
    /// The level would not fit a counter.
    #[error("the level would exceed what a counter can hold")]
    TooLarge,
    /// Others were faster for as long as the wait limit allows.
    #[error("contended: gave up after {attempts} attempts in {} ms", waited.as_millis())]
    Contended {
        /// How often it was tried.
        attempts: u32,
        /// For how long.
        waited: Duration,
    },
    /// This replica has as much to do as it is allowed to have.
    #[error("overloaded: {what}")]
    Overloaded {
        /// Which bound was reached.
        what: &'static str,
    },
    /// The strategy cannot be used here.
    #[error("strategy {strategy} is not available: {reason}")]
    StrategyUnavailable {
        /// Its name.
        strategy: &'static str,
        /// What to set, start or wait for.
        reason: String,
        /// What the service that is away was heard to say last, where one is away.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// The stock lives in Redis, or shall, and no Redis is configured.
    #[error("stock that lives in Redis needs a Redis: set REDIS_URL")]
    HomeUnavailable,
    /// A service that is needed does not answer.
    #[error("{what} is not available")]
    Unavailable {
        /// Which one.
        what: &'static str,
        /// What its driver said.
        #[source]
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// It may or may not have happened; a repeat with the same idempotency key tells.
    #[error("the outcome is not known")]
    OutcomeUnknown {
        /// What kept it from being known.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A defect of the service.
    #[error("internal error: {what}")]
    Internal {
        /// What was violated.
        what: String,
    },
}

impl StockError {
    /// The stable name of the error, for callers and for metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownSku => "unknown-sku",
            Self::Insufficient { .. } => "insufficient-stock",
            Self::IdempotencyKeyReused => "idempotency-key-reused",
            Self::RequestInFlight => "request-in-flight",
            Self::WrongHome { .. } => "wrong-home",
            Self::PreconditionFailed => "precondition-failed",
            Self::BelowLimit => "below-limit",
            Self::TooLarge => "level-too-large",
            Self::Contended { .. } => "contended",
            Self::Overloaded { .. } => "overloaded",
            Self::StrategyUnavailable { .. } => "strategy-unavailable",
            Self::HomeUnavailable => "home-unavailable",
            Self::Unavailable { .. } => "unavailable",
            Self::OutcomeUnknown { .. } => "outcome-unknown",
            Self::Internal { .. } => "internal",
        }
    }
}

impl From<InvalidName> for StockError {
    /// For names read back from a store, which wrote them only after parsing.
    fn from(error: InvalidName) -> Self {
        Self::Internal {
            what: format!("the store holds a bad name: {error}"),
        }
    }
}
