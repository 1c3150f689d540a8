//! Why an operation on stock was not carried out, in terms that a caller can act on.

use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;

use super::{InvalidName, MAX_LINES, OperationId, Sku, Warehouse, WrongShard};

/// A driver's error, opaque to everything outside the stores. All that wait for one answer can have it.
#[derive(Debug, Clone)]
pub struct DriverError(Arc<dyn Error + Send + Sync>);

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for DriverError {
    fn from(error: E) -> Self {
        Self(error.into().into())
    }
}

impl Deref for DriverError {
    type Target = dyn Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

/// Why stock was not changed, or why the outcome is unknown.
///
/// Every variant but [`StockError::OutcomeUnknown`] means that nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StockError {
    /// There is no such SKU, or none in that warehouse.
    #[error("there is no such SKU in that warehouse; PUT /stock/{{sku}} with on_hand creates it")]
    UnknownSku,
    /// The ledger has no operation with that id.
    #[error("no such operation is recorded")]
    UnknownOperation,
    /// A rule refuses the change.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// SKUs belong to other deployments.
    #[error("{0}; nothing was changed")]
    WrongShard(#[from] WrongShard),
    /// Only holds can be confirmed, released and extended.
    #[error("the operation is not a hold")]
    NotAHold,
    /// More units are to be sold than the line holds.
    #[error("{requested} requested, {held} held; nothing was changed")]
    ExceedsHold {
        /// Units requested.
        requested: i64,
        /// Units that the line holds.
        held: i64,
    },
    /// Only sales can be reversed.
    #[error("the operation is not a sale; only a sale can be reversed")]
    NotASale,
    /// The sale has no such line.
    #[error("the sale has no line {line}")]
    UnknownLine {
        /// The number of the line.
        line: i64,
    },
    /// The sale has several lines, so units must name theirs.
    #[error("the sale has several lines; send lines with their numbers, or no quantity")]
    LinesRequired,
    /// An operation would lock more levels than it may.
    #[error("the operation concerns {levels} levels, and may concern {MAX_LINES}")]
    TooManyLevels {
        /// How many it names.
        levels: usize,
    },
    /// A hold, or an operation of several lines, has no key.
    #[error("send an Idempotency-Key: a hold, and an operation of several lines, need one")]
    KeyRequired,
    /// Lines refuse an operation of several lines, all for the same reason. At least one.
    #[error("{}", of_lines(.0))]
    Lines(Vec<RefusedLine>),
    /// Fewer units are available than requested.
    #[error("{requested} requested, {available} available; nothing was taken")]
    Insufficient {
        /// Units requested.
        requested: i64,
        /// Units available.
        available: i64,
    },
    /// The key was used for another request before.
    #[error("this Idempotency-Key was used for another request; use a new one")]
    IdempotencyKeyReused,
    /// The first request with that key is still running.
    #[error("the first request with this Idempotency-Key is still running; try again")]
    RequestInFlight,
    /// Other writers were faster until the wait limit.
    #[error("other writers won until the wait limit passed; nothing was changed")]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// A bound of this replica is reached.
    #[error("{what}; nothing was changed")]
    Overloaded {
        /// The bound.
        what: &'static str,
    },
    /// The strategy cannot be used on this replica, or its lock server does not work.
    #[error("strategy {strategy} is not available: {reason}")]
    StrategyUnavailable {
        /// Its name.
        strategy: &'static str,
        /// What to set, start or wait for.
        reason: String,
        /// The error of the lock server, if it does not work.
        #[source]
        source: Option<DriverError>,
    },
    /// The database does not answer.
    #[error("the database is unavailable; nothing was changed")]
    Unavailable {
        /// The error of its driver.
        #[source]
        source: DriverError,
    },
    /// The database ended a statement at its time limit.
    #[error("the database did not finish in time; nothing was changed")]
    TooSlow {
        /// The error of its driver.
        #[source]
        source: DriverError,
    },
    /// It may or may not have happened. A retry with the same idempotency key finds out.
    #[error(
        "the outcome is unknown; retry with the same Idempotency-Key to get it (without a key, read \
         the movements before you retry)"
    )]
    OutcomeUnknown {
        /// The error that left the outcome unknown.
        #[source]
        source: DriverError,
    },
    /// A defect of the service.
    #[error("internal error: {what}")]
    Internal {
        /// The violated rule.
        what: String,
    },
}

/// Why a rule refuses a change that is not a sale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The caller's precondition does not hold.
    #[error("the stock does not match the precondition; read it again")]
    PreconditionFailed,
    /// The level does not have the units that a count expects, or exists although it must not.
    #[error("{on_hand} units are on hand, which is not what was expected; nothing was changed")]
    Differs {
        /// Its units.
        on_hand: i64,
    },
    /// Units on hand may be set only with a precondition, because the level was changed since its
    /// creation.
    #[error(
        "the level was changed since its creation, so on_hand needs If-Match with the ETag that you \
         read; POST /stock/{{sku}}/adjust adds or removes units without it"
    )]
    PreconditionRequired,
    /// It would break `on_hand - held >= -backorder_limit`.
    #[error("on_hand - held must not fall below -backorder_limit")]
    BelowLimit,
    /// A number of the level would be too large.
    #[error("the level would exceed what a counter can hold")]
    TooLarge,
    /// More units are to come back than are left of the sale, or none are left.
    #[error("{left} units of the sale are left to come back; nothing was changed")]
    ExceedsSale {
        /// Units requested.
        requested: i64,
        /// Units of the sale that have not come back.
        left: i64,
    },
    /// The line of the hold has ended in another way.
    #[error("line {line} of the hold is {state} already; nothing was changed")]
    HoldEnded {
        /// Its number.
        line: i64,
        /// What has become of it.
        state: &'static str,
        /// The operation that ended it, if it is known.
        by: Option<OperationId>,
    },
    /// The time of the hold is over, and it cannot be sold any more.
    #[error("the hold has expired: {requested} requested, {available} available; nothing was sold")]
    HoldExpired {
        /// Units requested.
        requested: i64,
        /// Units available.
        available: i64,
    },
}

impl Refusal {
    /// The stable code of the refusal: see [`StockError::code`].
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::PreconditionFailed | Self::Differs { .. } => "precondition-failed",
            Self::PreconditionRequired => "precondition-required",
            Self::BelowLimit => "below-limit",
            Self::TooLarge => "level-too-large",
            Self::ExceedsSale { .. } => "exceeds-sale",
            Self::HoldEnded { .. } => "hold-ended",
            Self::HoldExpired { .. } => "hold-expired",
        }
    }
}

/// A line that refuses its operation.
#[derive(Debug, Clone)]
pub struct RefusedLine {
    /// Its number.
    pub line: i64,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Why.
    pub error: StockError,
}

/// The first refusal, and how many there are.
fn of_lines(lines: &[RefusedLine]) -> String {
    let first = lines.iter().map(|one| {
        let RefusedLine {
            line,
            sku,
            warehouse,
            error,
        } = one;
        format!("line {line} ({sku} in {warehouse}): {error}")
    });
    let first = first.take(1).collect::<String>();
    match lines.len() {
        0 | 1 => first,
        lines => format!("{lines} lines are refused, the first is {first}"),
    }
}

impl StockError {
    /// The stable code of the error, for callers and for metrics.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownSku => "unknown-sku",
            Self::UnknownOperation => "unknown-operation",
            Self::Refused(refusal) => refusal.code(),
            Self::WrongShard(_) => "wrong-shard",
            Self::NotASale => "not-a-sale",
            Self::NotAHold => "not-a-hold",
            Self::ExceedsHold { .. } => "exceeds-hold",
            Self::UnknownLine { .. } => "unknown-line",
            Self::LinesRequired => "lines-required",
            Self::TooManyLevels { .. } => "too-many-lines",
            Self::KeyRequired => "idempotency-key-required",
            Self::Lines(lines) => lines.first().map_or("internal", |one| one.error.code()),
            Self::Insufficient { .. } => "insufficient-stock",
            Self::IdempotencyKeyReused => "idempotency-key-reused",
            Self::RequestInFlight => "request-in-flight",
            Self::Contended { .. } => "contended",
            Self::Overloaded { .. } => "overloaded",
            Self::StrategyUnavailable { .. } => "strategy-unavailable",
            Self::Unavailable { .. } => "unavailable",
            Self::TooSlow { .. } => "too-slow",
            Self::OutcomeUnknown { .. } => "outcome-unknown",
            Self::Internal { .. } => "internal",
        }
    }
}

impl From<InvalidName> for StockError {
    /// For names read from a store. The service writes only parsed names, so this is a defect.
    fn from(error: InvalidName) -> Self {
        Self::Internal {
            what: format!("the store holds a bad name: {error}"),
        }
    }
}
