//! A write that takes units from a level on a condition, and records the sale.
//!
//! Level and movement commit together. The condition is part of the `UPDATE`, so the database
//! evaluates it when it holds the row's lock.

use super::dialect::{Value, values};
use super::ledger_row::LedgerRow;
use stocklock_core::ports::Condition;
use stocklock_core::stock::{Deduction, Fence, StockLevel};

/// What a conditional write did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// Level and movement are committed; this many units are available.
    Written { available: i64 },
    /// The condition does not hold. Nothing was changed.
    Refused,
    /// The ledger already has the operation, or its key. Nothing was changed.
    Duplicate,
}

/// What is written, and on which condition.
#[derive(Debug)]
pub(crate) struct ConditionalWrite<'a> {
    /// The movement. The statement computes its `available_after`.
    pub(crate) row: LedgerRow,
    pub(crate) change: Change<'a>,
}

/// The change of the level.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// Takes the units if enough are available.
    Take { units: i64 },
    /// Sets `on_hand`, if the backorder limit allows it: the limit may be lower than it was when
    /// the level was read, and the CHECK would refuse the row.
    Overwrite { on_hand: i64 },
    /// Sets `on_hand` if the level has this version.
    IfVersion { on_hand: i64, version: i64 },
    /// The same, if no later holder of the lock has written.
    IfFenced {
        on_hand: i64,
        version: i64,
        fence: &'a Fence,
    },
}

impl<'a> ConditionalWrite<'a> {
    /// Takes the units if enough are available.
    pub(crate) fn if_available(deduction: &Deduction) -> Self {
        let units = deduction.quantity.units();
        Self {
            row: LedgerRow::from_deduction(deduction, None),
            change: Change::Take { units },
        }
    }

    /// Writes the level that follows from `read`.
    pub(crate) fn from_read(
        deduction: &Deduction,
        read: &StockLevel,
        condition: Condition<'a>,
    ) -> Self {
        let on_hand = read.on_hand - deduction.quantity.units();
        let version = read.version;
        Self {
            row: LedgerRow::from_deduction(deduction, Some(read)),
            change: match condition {
                Condition::None => Change::Overwrite { on_hand },
                Condition::Version => Change::IfVersion { on_hand, version },
                Condition::Fence(fence) => Change::IfFenced {
                    on_hand,
                    version,
                    fence,
                },
            },
        }
    }

    /// Whether the movement has an idempotency key.
    pub(crate) fn has_key(&self) -> bool {
        self.row.idempotency_key.is_some()
    }

    /// The values of the statement: those of the row (`$1` to `$13`), then those of the level.
    pub(crate) fn values(&self) -> Vec<Value<'_>> {
        let mut all = self.row.values().to_vec();
        match self.change {
            Change::Take { units } => all.extend(values![units]),
            Change::Overwrite { on_hand } => all.extend(values![on_hand]),
            Change::IfVersion { on_hand, version } => all.extend(values![on_hand, version]),
            Change::IfFenced {
                on_hand,
                version,
                fence,
            } => all.extend(values![on_hand, version, fence.token, &*fence.source]),
        }
        all
    }
}

/// An `UPDATE` between `$before` and `$after`. It returns the units that are available, or no row if
/// the condition does not hold.
macro_rules! update {
    ($before:expr, $set:literal, $condition:literal, $after:expr) => {
        concat!(
            $before,
            "UPDATE stock SET version = version + 1, ",
            $set,
            " WHERE sku = $2 AND warehouse = $3 AND home = 'sql' AND ",
            $condition,
            " RETURNING on_hand - held + backorder_limit AS available",
            $after
        )
    };
}

/// A function from a [`Change`] to its statement in a dialect: an [`update`] between `$before` and
/// `$after`.
macro_rules! updates {
    ($before:expr, $after:expr) => {
        |change| match change {
            Change::Take { .. } => update!(
                $before,
                "on_hand = on_hand - $14",
                "on_hand - held >= $14 - backorder_limit",
                $after
            ),
            Change::Overwrite { .. } => update!(
                $before,
                "on_hand = $14",
                "$14 - held >= -backorder_limit",
                $after
            ),
            Change::IfVersion { .. } => {
                update!($before, "on_hand = $14", "version = $15", $after)
            }
            Change::IfFenced { .. } => update!(
                $before,
                "on_hand = $14, fence = $16, fence_source = $17",
                "version = $15 AND (fence_source <> $17 OR fence <= $16)",
                $after
            ),
        }
    };
}
pub(crate) use {update, updates};
