//! What one attempt at an operation did.

use super::StoreError;
use crate::stock::{Fence, MadeLine, Movement, Refusal, StockLevel};

/// What the store answers to one operation of a batch.
pub type BatchAnswer = Result<AttemptOutcome, StoreError>;

/// What one attempt did. Every variant but [`AttemptOutcome::Deducted`], [`AttemptOutcome::Changed`] and
/// [`AttemptOutcome::Lines`] changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// A deduction is committed: level and movement together.
    Deducted {
        /// Units available right after it.
        remaining: i64,
    },
    /// Another change is committed. If the level already was as a setting requires, nothing was written.
    Changed(Box<ChangedLevel>),
    /// An operation of several lines is committed, with these.
    Lines(Vec<MadeLine>),
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
    /// Another rule refuses it.
    Refused(Refusal),
    /// None of the warehouses of a line has the units, or not all together if they may be split.
    Short {
        /// Units available in each.
        available: Vec<i64>,
    },
    /// Lines refuse an operation of several levels: the place of each, and why.
    RefusedLines(Vec<(usize, AttemptOutcome)>),
    /// The level is no longer the one that was read.
    Conflict,
    /// The lock was lost: a later holder of it has written.
    LockLost,
    /// The ledger already has this operation, or this idempotency key.
    Duplicate,
    /// The same, and this is the movement.
    Recorded(Box<Movement>),
}

/// What a change made of a level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedLevel {
    /// The level after the change.
    pub level: StockLevel,
    /// Whether the change created it.
    pub created: bool,
    /// What was made. Zero units, if the level already was as a setting requires.
    pub made: MadeLine,
}

impl AttemptOutcome {
    /// Decides on a level that was read: the units that remain after `units` are taken, or why they are not
    /// taken.
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
