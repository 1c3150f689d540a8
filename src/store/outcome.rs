//! What comes of a deduction, or of a change of a level, that a store carried out or refused.

use crate::stock::{Fence, Home, StockLevel};

/// What came of one attempt to deduct; every arm but [`Attempt::Deducted`] left no trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Level and movement are committed; so many units remain available.
    Deducted {
        /// Units available right after it.
        remaining: i64,
    },
    /// Level and movement are in Redis, and SQL will follow; so many units remain available.
    Journaled {
        /// Units available right after it.
        remaining: i64,
    },
    /// There were fewer units than asked for.
    Insufficient {
        /// How many there were.
        available: i64,
    },
    /// No such SKU in that warehouse.
    UnknownSku,
    /// The SKU's stock lives elsewhere.
    WrongHome(Home),
    /// The level is no longer the one that was read.
    Stale,
    /// The lock was lost: a later holder of it has written.
    LockLost,
    /// The ledger has this operation, or this idempotency key, already.
    Duplicate,
}

impl Attempt {
    /// What follows from `level`, which was read and locked: what remains after `units` are taken,
    /// or why they are not.
    pub(super) fn decide(level: Option<StockLevel>, units: i64) -> Result<i64, Self> {
        match level {
            None => Err(Self::UnknownSku),
            Some(level) if level.home != Home::Sql => Err(Self::WrongHome(level.home)),
            Some(level) if level.available() < units => Err(Self::Insufficient {
                available: level.available(),
            }),
            Some(level) => Ok(level.available() - units),
        }
    }

    /// What follows from `level`, which was read after SQL had refused `units`. Where it has so
    /// many, somebody restocked in between: no refusal could be told that made sense.
    pub(super) fn refused(level: Option<StockLevel>, units: i64) -> Self {
        match level {
            None => Self::UnknownSku,
            Some(level) if level.home != Home::Sql => Self::WrongHome(level.home),
            Some(level) if level.available() >= units => Self::Stale,
            Some(level) => Self::Insufficient {
                available: level.available(),
            },
        }
    }

    /// Why a write on condition of version and `fence` changed nothing, where `last` is the fence
    /// that stands there: a later holder of the lock has written, or else somebody who held none.
    pub(super) fn overtaken(last: Option<(i64, String)>, fence: &Fence) -> Self {
        if last.is_some_and(|(token, source)| fence.is_before(token, &source)) {
            Self::LockLost
        } else {
            Self::Stale
        }
    }
}

/// What came of a change of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It is committed; this is the level now, and whether it was created.
    Done {
        /// The level after the change.
        level: StockLevel,
        /// Whether there was none before.
        created: bool,
    },
    /// No such SKU in that warehouse.
    UnknownSku,
    /// The caller's precondition does not hold.
    PreconditionFailed,
    /// The SKU's stock lives elsewhere.
    WrongHome(Home),
    /// It would break `on_hand - held >= -backorder_limit`; so many units are available.
    BelowLimit {
        /// Units that could be taken.
        available: i64,
    },
    /// The counter would overflow.
    TooLarge,
    /// The level is no longer the one that was refused.
    Stale,
    /// The ledger has this operation, or this idempotency key, already.
    Duplicate,
}

impl Change {
    /// What follows from `level`, which was read after SQL had refused the change by `delta`.
    pub(super) fn refused(level: Option<StockLevel>, delta: i64) -> Self {
        match level {
            None => Self::UnknownSku,
            Some(level) if level.home != Home::Sql => Self::WrongHome(level.home),
            Some(level) if level.available() + delta >= 0 => Self::Stale,
            Some(level) => Self::BelowLimit {
                available: level.available(),
            },
        }
    }
}
