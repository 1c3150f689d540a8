//! What a store answers to a deduction or to a change of a level.

use crate::stock::{Fence, Movement, StockLevel};

/// What one attempt to deduct did. Every variant but [`AttemptOutcome::Deducted`] changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// Level and movement are written together.
    Deducted {
        /// Units available right after it.
        remaining: i64,
    },
    /// Fewer units are available than requested.
    Insufficient {
        /// Units available.
        available: i64,
    },
    /// The same, and the ledger has neither the operation nor its key.
    Unrecorded {
        /// Units available.
        available: i64,
    },
    /// No such SKU in that warehouse.
    UnknownSku,
    /// The level is no longer the one that was read.
    Conflict,
    /// The lock was lost: a later holder of it has written.
    LockLost,
    /// The ledger already has this operation, or this idempotency key.
    Duplicate,
    /// The same, and this is the movement.
    Recorded(Box<Movement>),
}

impl AttemptOutcome {
    /// Decides on a level that was read and locked: the units that remain after `units` are taken,
    /// or why they are not taken.
    ///
    /// # Errors
    /// The refusal.
    pub fn decide(level: Option<&StockLevel>, units: i64) -> Result<i64, Self> {
        match level {
            None => Err(Self::UnknownSku),
            Some(level) if level.available() < units => Err(Self::Insufficient {
                available: level.available(),
            }),
            Some(level) => Ok(level.available() - units),
        }
    }

    /// Why SQL refused to take `units`, given the level that was read after the refusal. If enough
    /// units are available by now, stock was added in between, so the attempt is repeated.
    #[must_use]
    pub fn refused(level: Option<&StockLevel>, units: i64) -> Self {
        Self::decide(level, units)
            .err()
            .unwrap_or(AttemptOutcome::Conflict)
    }

    /// Why a write on condition of version and `fence` changed no row; `last` is the fence that the
    /// row has. A later fence of the same source means that the lock was lost.
    #[must_use]
    pub fn write_refused(last: Option<(i64, String)>, fence: &Fence) -> Self {
        if last.is_some_and(|(token, source)| fence.is_before(token, &source)) {
            Self::LockLost
        } else {
            Self::Conflict
        }
    }
}

/// What a change of a level did. Every variant but [`ChangeOutcome::Done`] changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeOutcome {
    /// The level is committed as the change requires. If it was so before, nothing was written.
    Done {
        /// The level after the change.
        level: StockLevel,
        /// Whether the change created the level.
        created: bool,
    },
    /// No such SKU in that warehouse. A change that creates it needs a number of units.
    UnknownSku,
    /// The caller's precondition does not hold.
    PreconditionFailed,
    /// Units on hand may be set only with a precondition, because the level was changed since its
    /// creation.
    PreconditionRequired,
    /// It would break `on_hand - held >= -backorder_limit`.
    BelowLimit {
        /// Units available.
        available: i64,
    },
    /// The counter would overflow.
    TooLarge,
    /// The level is no longer the one that was read.
    Conflict,
    /// The ledger already has this operation, or this idempotency key.
    Duplicate,
}
