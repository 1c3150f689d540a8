//! A movement on its way into the ledger: the values that all SQL back ends bind, in one order.

use uuid::Uuid;

use stocklock_core::stock::{
    Adjustment, Deduction, Durability, Idempotency, LevelChange, MovementKind, Reason, Reference,
    StockLevel,
};

/// One row to insert, borrowed from the operation that it records: all of it but the units that are
/// available afterwards, which the database may be the first to know.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) operation: Uuid,
    pub(super) sku: &'a str,
    pub(super) warehouse: &'a str,
    pub(super) kind: MovementKind,
    pub(super) delta: i64,
    pub(super) read_version: Option<i64>,
    pub(super) strategy: Option<&'static str>,
    pub(super) durability: Durability,
    pub(super) idempotency: Option<&'a Idempotency>,
    pub(super) reason: Option<&'a str>,
    pub(super) reference: Option<&'a str>,
}

impl<'a> Record<'a> {
    /// A sale; `read` is the level that it was computed from, where it was computed outside the
    /// statement that wrote it.
    pub(super) fn of_deduction(deduction: &'a Deduction, read: Option<&StockLevel>) -> Self {
        Self {
            operation: deduction.operation.0,
            sku: deduction.sku.as_str(),
            warehouse: deduction.warehouse.as_str(),
            kind: MovementKind::Deducted,
            delta: -deduction.quantity.units(),
            read_version: read.map(|level| level.version),
            strategy: Some(deduction.strategy),
            durability: Durability::Committed,
            idempotency: deduction.idempotency.as_ref(),
            reason: None,
            reference: None,
        }
    }

    /// A level that was set from `before` to `after`.
    pub(super) fn of_level_change(
        change: &'a LevelChange,
        before: i64,
        after: &StockLevel,
    ) -> Self {
        let delta = after.on_hand - before;
        Self {
            operation: change.operation.0,
            sku: change.sku.as_str(),
            warehouse: change.warehouse.as_str(),
            kind: kind_of_change(delta),
            delta,
            read_version: None,
            strategy: None,
            durability: Durability::Committed,
            idempotency: None,
            reason: change.reason.as_ref().map(Reason::as_str),
            reference: None,
        }
    }

    /// A change by a number of units.
    pub(super) fn of_adjustment(adjustment: &'a Adjustment) -> Self {
        Self {
            operation: adjustment.operation.0,
            sku: adjustment.sku.as_str(),
            warehouse: adjustment.warehouse.as_str(),
            kind: kind_of_change(adjustment.delta),
            delta: adjustment.delta,
            read_version: None,
            strategy: None,
            durability: Durability::Committed,
            idempotency: adjustment.idempotency.as_ref(),
            reason: Some(adjustment.reason.as_str()),
            reference: adjustment.reference.as_ref().map(Reference::as_str),
        }
    }

    /// The caller whose key it carries, or nobody in particular.
    pub(super) fn caller(&self) -> &'a str {
        self.idempotency
            .map_or("anonymous", |idempotency| idempotency.caller.as_str())
    }

    pub(super) fn key(&self) -> Option<&'a str> {
        self.idempotency.map(|idempotency| idempotency.key.as_str())
    }

    pub(super) fn hash(&self) -> Option<&'a [u8]> {
        self.idempotency.map(|idempotency| &idempotency.hash.0[..])
    }
}

/// What was gained was received; what was lost, or stayed, was corrected.
fn kind_of_change(delta: i64) -> MovementKind {
    if delta > 0 {
        MovementKind::Received
    } else {
        MovementKind::Adjusted
    }
}

/// Binds a record's values to a statement that inserts it: a macro, for the three drivers' query
/// types have no common one that could be named in a line.
macro_rules! bind_record {
    ($query:expr, $record:expr) => {
        $query
            .bind($record.operation)
            .bind($record.sku)
            .bind($record.warehouse)
            .bind($record.kind.as_str())
            .bind($record.delta)
            .bind($record.read_version)
            .bind($record.strategy)
            .bind($record.durability.as_str())
            .bind($record.caller())
            .bind($record.key())
            .bind($record.hash())
            .bind($record.reason)
            .bind($record.reference)
    };
}
pub(super) use bind_record;
