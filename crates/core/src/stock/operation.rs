//! A change of stock: what every write has in common.

use std::collections::BTreeSet;
use std::iter;

use tokio::time::Instant;

use super::{
    Caller, Ending, Holding, How, Idempotency, MAX_LINES, Movement, OperationId, Precondition,
    Quantity, Remark, Remarks, Scope, Sku, StockError, Warehouse,
};

/// The highest number of a line in the ledger: an operation that holds [`MAX_LINES`] lines may end as many of
/// another hold.
pub const MAX_LINE_NUMBER: i64 = 199;

/// A change of stock. All of its lines are committed together, or nothing is.
#[derive(Debug, Clone)]
pub struct Operation {
    /// Its id.
    pub id: OperationId,
    /// Who sent the request.
    pub caller: Caller,
    /// What becomes of each level. At least one, and of at most [`MAX_LINES`] levels. A reversal and the end of a hold
    /// have none before the lines that they name were read.
    pub lines: Vec<Line>,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
    /// What the caller remarks on it.
    pub remarks: Remarks,
    /// The name of the strategy that protects a deduction, for the ledger.
    pub strategy: Option<&'static str>,
    /// Whether it is a row of an import, which shares transactions with other rows.
    pub is_row: bool,
    /// When the caller is answered at the latest. No attempt is made later.
    pub deadline: Instant,
}

/// What becomes of one level.
#[derive(Debug, Clone)]
pub struct Line {
    /// The SKU.
    pub sku: Sku,
    /// The warehouse, or the first one.
    pub warehouse: Warehouse,
    /// The other warehouses that may have the units, in the order of preference. Only for [`Change::Deduct`]
    /// and [`Change::Hold`].
    pub others: Vec<Warehouse>,
    /// Whether the units may come from several of them.
    pub split: bool,
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
    /// Sets the units on hand to those that were counted, or creates the level with them.
    Count(Count),
    /// Sets units aside.
    Hold(Holding),
    /// Ends a line of a hold.
    End(Ending),
}

impl Change {
    /// Its name in the metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Deduct(_) => "deducted",
            Self::Adjust(_) => "adjusted",
            Self::Return(_) => "returned",
            Self::Set(_) => "set",
            Self::Count(_) => "counted",
            Self::Hold(_) => "held",
            Self::End(ending) => match ending.how {
                How::Confirm { .. } => "confirmed",
                How::Release => "released",
                How::Expire => "expired",
            },
        }
    }

    /// How many units of its warehouses it takes or sets aside.
    #[must_use]
    pub fn quantity(&self) -> Option<Quantity> {
        match self {
            Self::Deduct(quantity) => Some(*quantity),
            Self::Hold(holding) => Some(holding.quantity),
            _ => None,
        }
    }

    /// The same with another number of units.
    #[must_use]
    pub fn of(&self, quantity: Quantity) -> Self {
        match self {
            Self::Deduct(_) => Self::Deduct(quantity),
            Self::Hold(holding) => Self::Hold(Holding {
                quantity,
                ..*holding
            }),
            other => other.clone(),
        }
    }
}

/// What comes back of a sale.
#[derive(Debug, Clone, Copy)]
pub struct Return {
    /// The operation id of the sale.
    pub sale: OperationId,
    /// The line of the sale. The line of the return has the same number.
    pub line: i64,
    /// Units that the line sold.
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

/// Units on hand that were counted. Unlike a [`Setting`], it concerns no other level of the SKU, and is
/// recorded also if it changes nothing: its retry must not undo what was sold after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The units.
    pub on_hand: i64,
    /// What must be on hand before.
    pub from: CountedFrom,
}

/// What a [`Count`] finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedFrom {
    /// So many units.
    Units(i64),
    /// Any number of units.
    Any,
    /// No level: it is created.
    Absent,
}

impl Line {
    /// A line of one level.
    #[must_use]
    pub fn new(sku: Sku, warehouse: Warehouse, change: Change) -> Self {
        Self {
            sku,
            warehouse,
            others: Vec::new(),
            split: false,
            change,
        }
    }

    /// The levels that it may change.
    pub fn levels(&self) -> impl Iterator<Item = (&Sku, &Warehouse)> {
        let warehouses = iter::once(&self.warehouse).chain(&self.others);
        warehouses.map(|warehouse| (&self.sku, warehouse))
    }

    /// The number of the line in the ledger, if it follows from an earlier operation.
    #[must_use]
    pub fn given_number(&self) -> Option<i64> {
        match &self.change {
            Change::Return(one) => Some(one.line),
            Change::End(one) => Some(one.line),
            _ => None,
        }
    }

    /// The number of the line for its caller, if it has this place in its operation.
    #[must_use]
    pub fn number(&self, place: usize) -> i64 {
        let given = self.given_number();
        given.unwrap_or_else(|| i64::try_from(place).expect("a short list"))
    }
}

/// A line that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeLine {
    /// Its number in the operation.
    pub line: i64,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units added to `on_hand`.
    pub delta: i64,
    /// Units added to `held`.
    pub held_delta: i64,
    /// How many units of a sale came back, if it is a return.
    pub returned: Option<i64>,
    /// When it ends, if it is a hold that was just made: [`Holding::expires_at`].
    pub expires_at: Option<i64>,
    /// Units available right after it.
    pub remaining: i64,
}

impl From<Movement> for MadeLine {
    fn from(movement: Movement) -> Self {
        Self {
            line: movement.line,
            sku: movement.sku,
            warehouse: movement.warehouse,
            delta: movement.delta,
            held_delta: movement.held_delta,
            returned: movement.returned,
            expires_at: None,
            remaining: movement.available_after,
        }
    }
}

impl Operation {
    /// A new operation of these lines.
    ///
    /// # Errors
    /// [`StockError::KeyRequired`] if it has several lines and no key: a caller without an answer would not
    /// know which levels to look at. [`StockError::TooManyLevels`].
    pub fn of_lines(
        caller: Caller,
        lines: Vec<Line>,
        idempotency: Option<Idempotency>,
        remarks: Remarks,
        deadline: Instant,
    ) -> Result<Self, StockError> {
        let new = Self {
            id: OperationId::mint(),
            caller,
            lines: Vec::new(),
            idempotency,
            remarks,
            strategy: None,
            is_row: false,
            deadline,
        };
        new.with_lines(lines)
    }

    /// The same operation, with these lines.
    ///
    /// # Errors
    /// As [`Operation::of_lines`].
    pub fn with_lines(self, lines: Vec<Line>) -> Result<Self, StockError> {
        if lines.len() > 1 && self.idempotency.is_none() {
            return Err(StockError::KeyRequired);
        }
        // Not each once: a line may take units of each of its levels.
        let levels = lines.iter().flat_map(Line::levels).count();
        if levels > MAX_LINES {
            return Err(StockError::TooManyLevels { levels });
        }
        Ok(Self { lines, ..self })
    }

    /// A new operation of this line, without a key.
    #[must_use]
    pub fn of_line(caller: Caller, line: Line, reason: Option<Remark>, deadline: Instant) -> Self {
        Self {
            id: OperationId::mint(),
            caller,
            lines: vec![line],
            idempotency: None,
            remarks: Remarks {
                reason,
                ..Remarks::default()
            },
            strategy: None,
            is_row: false,
            deadline,
        }
    }

    /// Refuses an operation of too many levels.
    ///
    /// # Errors
    /// [`StockError::TooManyLevels`].
    pub fn check_levels(&self) -> Result<(), StockError> {
        let levels = self.levels().collect::<BTreeSet<_>>().len();
        if levels > MAX_LINES {
            return Err(StockError::TooManyLevels { levels });
        }
        Ok(())
    }

    /// The levels that it may change, by line. A level may be named several times.
    pub fn levels(&self) -> impl Iterator<Item = (&Sku, &Warehouse)> {
        self.lines.iter().flat_map(Line::levels)
    }

    /// Whether it has one line, of one level.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.lines.len() == 1 && self.lines[0].others.is_empty()
    }

    /// The units, if it is a deduction of one level: a guarded write makes that without a snapshot.
    #[must_use]
    pub fn as_deduction(&self) -> Option<Quantity> {
        match self.first().change {
            Change::Deduct(quantity) if self.is_single() => Some(quantity),
            _ => None,
        }
    }

    /// Whether it can be planned without a snapshot: it only needs enough units of one level.
    #[must_use]
    pub fn needs_only_units(&self) -> bool {
        let change = &self.first().change;
        self.is_single() && matches!(change, Change::Deduct(_) | Change::Hold(_))
    }

    /// Whether it can be planned on its level alone: the rest is a condition of the write.
    #[must_use]
    pub fn needs_only_its_level(&self) -> bool {
        let ends_open_line = match self.first().change {
            // Whether it is late is not known.
            Change::End(end) => {
                end.open.is_some() && !matches!(end.how, How::Confirm { late: false, .. })
            }
            _ => false,
        };
        self.is_single() && ends_open_line || self.needs_only_units()
    }

    /// The first line.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn first(&self) -> &Line {
        self.lines.first().expect("an operation has a line")
    }

    /// SKU and warehouse of the first line.
    #[must_use]
    pub fn level(&self) -> (&Sku, &Warehouse) {
        let line = self.first();
        (&line.sku, &line.warehouse)
    }

    /// The same, to keep.
    pub(crate) fn owned_level(&self) -> (Sku, Warehouse) {
        let (sku, warehouse) = self.level();
        (sku.clone(), warehouse.clone())
    }

    /// The units that the first line takes or sets aside.
    #[must_use]
    pub fn units(&self) -> i64 {
        self.first().change.quantity().map_or(0, Quantity::units)
    }

    /// The refusal if only this many units are available.
    pub(crate) fn insufficient(&self, available: i64) -> StockError {
        StockError::Insufficient {
            requested: self.units(),
            available,
        }
    }

    /// A deduction of one unit, for unit tests.
    #[cfg(test)]
    pub(crate) fn sample(sku: &str) -> Self {
        let sku = Sku::parse(sku).expect("a valid SKU");
        let line = Line::new(sku, Warehouse::default(), Change::Deduct(Quantity::ONE));
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
        Self {
            strategy: Some("group-commit"),
            ..Self::of_line(Caller::anonymous(), line, None, deadline)
        }
    }
}
