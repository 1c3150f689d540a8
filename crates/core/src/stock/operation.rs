//! A change of stock: what every write has in common.

use tokio::time::Instant;

use super::{
    Adjustment, Caller, Deduction, Idempotency, LevelChange, OperationId, Precondition, Quantity,
    Remarks, Reversal, Scope, Sku, Warehouse,
};

/// A change of stock. All of its lines are committed together, or nothing is.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// What becomes of each level: 1 to 100 lines.
    pub lines: Vec<Line>,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
    /// What the caller remarks on it.
    pub remarks: Remarks,
    /// The name of the strategy that protects a deduction, for the ledger.
    pub strategy: Option<&'static str>,
    /// When the caller is answered at the latest. No attempt is made later.
    pub deadline: Instant,
}

/// What becomes of one level.
#[derive(Debug, Clone)]
pub struct Line {
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// The change.
    pub change: Change,
}

/// A change of one level.
#[derive(Debug, Clone)]
pub enum Change {
    /// Takes units.
    Deduct(Quantity),
    /// Adds units (positive) or takes them (negative).
    Adjust(i64),
    /// Takes units of a sale back.
    Return(Return),
    /// Sets the level; creates it if there is none.
    Set(Setting),
}

/// What comes back of a sale.
#[derive(Debug, Clone, Copy)]
pub struct Return {
    /// The operation id of the sale.
    pub sale: OperationId,
    /// Units that were sold.
    pub sold: i64,
    /// How many units come back; `None`: all that are left.
    pub quantity: Option<Quantity>,
    /// Whether they are on hand again.
    pub restock: bool,
}

/// What a level is set to.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The new units on hand. `None` keeps those of an existing level; a new level needs a number.
    pub on_hand: Option<i64>,
    /// The new backorder limit; `None` keeps the old one (zero for a new level).
    pub backorder_limit: Option<i64>,
    /// The change is made only if this holds.
    pub precondition: Option<Precondition>,
    /// The levels that the precondition is about.
    pub scope: Scope,
}

impl Operation {
    /// Who sent the request.
    #[must_use]
    pub fn caller(&self) -> &str {
        let idempotency = self.idempotency.as_ref();
        idempotency.map_or(Caller::ANONYMOUS, |one| one.caller.as_str())
    }

    /// The units, if it is a deduction of one line: a guarded write makes that without a snapshot.
    #[must_use]
    pub fn as_deduction(&self) -> Option<Quantity> {
        match &self.lines[..] {
            [
                Line {
                    change: Change::Deduct(quantity),
                    ..
                },
            ] => Some(*quantity),
            _ => None,
        }
    }

    /// The first line.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn first(&self) -> &Line {
        self.lines.first().expect("an operation has a line")
    }

    /// An operation of one line.
    fn of_line(
        id: OperationId,
        (sku, warehouse): (Sku, Warehouse),
        change: Change,
        deadline: Instant,
    ) -> Self {
        Self {
            id,
            lines: vec![Line {
                sku,
                warehouse,
                change,
            }],
            idempotency: None,
            remarks: Remarks::default(),
            strategy: None,
            deadline,
        }
    }
}

impl From<Deduction> for Operation {
    fn from(deduction: Deduction) -> Self {
        let place = (deduction.sku, deduction.warehouse);
        let change = Change::Deduct(deduction.quantity);
        Self {
            idempotency: deduction.idempotency,
            remarks: deduction.remarks,
            strategy: Some(deduction.strategy),
            ..Self::of_line(deduction.operation, place, change, deduction.deadline)
        }
    }
}

impl From<Adjustment> for Operation {
    fn from(adjustment: Adjustment) -> Self {
        let place = (adjustment.sku, adjustment.warehouse);
        let change = Change::Adjust(adjustment.delta);
        Self {
            idempotency: adjustment.idempotency,
            remarks: Remarks {
                reason: Some(adjustment.reason),
                reference: adjustment.reference,
            },
            ..Self::of_line(adjustment.operation, place, change, adjustment.deadline)
        }
    }
}

impl From<LevelChange> for Operation {
    fn from(change: LevelChange) -> Self {
        let place = (change.sku, change.warehouse);
        let setting = Change::Set(Setting {
            on_hand: change.on_hand,
            backorder_limit: change.backorder_limit,
            precondition: change.precondition,
            scope: change.scope,
        });
        Self {
            remarks: Remarks {
                reason: change.reason,
                ..Remarks::default()
            },
            ..Self::of_line(change.operation, place, setting, change.deadline)
        }
    }
}

impl Reversal {
    /// The operation that takes units of `sale` back: it was of this level, and took so many units.
    #[must_use]
    pub fn of_sale(self, (sku, warehouse): (Sku, Warehouse), sold: i64) -> Operation {
        let change = Change::Return(Return {
            sale: self.sale,
            sold,
            quantity: self.quantity,
            restock: self.restock,
        });
        Operation {
            idempotency: self.idempotency,
            remarks: Remarks {
                reason: Some(self.reason),
                ..Remarks::default()
            },
            ..Operation::of_line(self.operation, (sku, warehouse), change, self.deadline)
        }
    }
}
