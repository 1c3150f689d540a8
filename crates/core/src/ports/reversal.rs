//! Decides what comes back of a sale. The caller has locked the level and the sale.

use crate::stock::{MAX_UNITS, Movement, Quantity, Reversal, StockLevel};

/// What a reversal did. Every variant but [`ReversalOutcome::Done`] changed nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReversalOutcome {
    /// The return is committed.
    Done(PlannedReturn),
    /// The sale's level is gone.
    UnknownSku,
    /// More units than are left of the sale, or none are left.
    ExceedsSale {
        /// Units of the sale that have not come back.
        left: i64,
    },
    /// The counter would overflow.
    TooLarge,
    /// The ledger already has this operation, or this idempotency key.
    Duplicate,
}

/// Units that are to come back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedReturn {
    /// The level after the return.
    pub level: StockLevel,
    /// How many units come back.
    pub quantity: i64,
    /// How many of them are on hand again: all or none.
    pub restocked: i64,
}

impl PlannedReturn {
    /// Decides what comes back of `sale`, of which `returned` units have come back before.
    ///
    /// # Errors
    /// The refusal.
    pub fn new(
        reversal: &Reversal,
        sale: &Movement,
        returned: i64,
        level: Option<StockLevel>,
    ) -> Result<Self, ReversalOutcome> {
        let level = level.ok_or(ReversalOutcome::UnknownSku)?;
        let left = -sale.delta - returned;
        let quantity = reversal.quantity.map_or(left, Quantity::units);
        if quantity > left || left <= 0 {
            return Err(ReversalOutcome::ExceedsSale { left });
        }
        let restocked = if reversal.restock { quantity } else { 0 };
        let on_hand = level.on_hand + restocked;
        if on_hand.abs() > MAX_UNITS {
            return Err(ReversalOutcome::TooLarge);
        }
        let level = StockLevel {
            on_hand,
            version: level.version + 1,
            ..level
        };
        Ok(Self {
            level,
            quantity,
            restocked,
        })
    }
}
