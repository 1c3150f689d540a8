//! What callers are answered. A retry gets the first answer, rebuilt from the ledger.
//!
//! The comments of the fields are in the API's document.

use std::borrow::Cow;

use serde::Serialize;

use super::Changed;
use crate::stock::{Deducted, Line, MadeLine, OperationId, Quantity, Sku, Warehouse};

impl Changed {
    pub(super) fn new(operation: OperationId, lines: Vec<MadeLine>, replayed: bool) -> Self {
        Self {
            operation,
            lines,
            created: false,
            level: None,
            strategy: None,
            replayed,
        }
    }

    pub(crate) fn only_line(mut self) -> MadeLine {
        self.lines.pop().expect("an operation has a line")
    }
}

/// An adjustment that was made.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AdjustAnswer))]
pub struct Adjusted {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units added.
    pub delta: i64,
    /// Units available after the adjustment.
    pub remaining: i64,
}

/// Units of a sale that came back.
#[derive(Debug, Serialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReverseAnswer))]
pub enum Reversed {
    /// Of a sale of one line.
    Line(ReversedLine),
    /// By line.
    Lines(ReversedLines),
}

/// Units that came back of a sale of one line.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReverseLineAnswer))]
pub struct ReversedLine {
    /// The id of the return in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the sale.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reverses: OperationId,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units that came back.
    pub quantity: i64,
    /// Whether they are on hand again.
    pub restock: bool,
    /// Units available after the return.
    pub remaining: i64,
}

/// Units that came back of lines of a sale.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = ReverseLinesAnswer))]
pub struct ReversedLines {
    /// The id of the return in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The id of the sale.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub reverses: OperationId,
    /// Whether the units are on hand again.
    pub restock: bool,
    /// What came back, in the order of the lines.
    pub lines: Vec<OrderedLine>,
}

/// An order that was made: every line of it.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OrderAnswer))]
pub struct Ordered {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// What was taken, in the order of the lines.
    pub lines: Vec<OrderedLine>,
    /// The strategy that protected it.
    pub strategy: Cow<'static, str>,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}

/// Units of a line.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = OrderAnswerLine))]
pub struct OrderedLine {
    /// The number of the line in its order, from 0.
    pub line: i64,
    /// The place of the line in the request, from 0, if that need not be its number: a line
    /// names several warehouses, or a hold replaces another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_line: Option<usize>,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units that were taken, or that came back.
    pub quantity: i64,
    /// Units available after that line.
    pub remaining: i64,
}

/// Adjustments that were made together.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AdjustLinesAnswer))]
pub struct AdjustedLines {
    /// The id of the operation in the ledger.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// What was changed, in the order of the lines.
    pub lines: Vec<AdjustedLine>,
}

/// Units of a line.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = AdjustAnswerLine))]
pub struct AdjustedLine {
    /// The number of the line, from 0.
    pub line: i64,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// Units added.
    pub delta: i64,
    /// Units available after that line.
    pub remaining: i64,
}

impl From<MadeLine> for OrderedLine {
    fn from(made: MadeLine) -> Self {
        Self {
            line: made.line,
            request_line: None,
            sku: made.sku,
            warehouse: made.warehouse,
            quantity: made.returned.unwrap_or(-made.delta),
            remaining: made.remaining,
        }
    }
}

/// Adds the places in the request. Each line of it has made one or several, in its order.
pub(super) fn name_request_lines(made: &mut [OrderedLine], request: Option<&[Line]>) {
    let Some(request) = request else {
        return;
    };
    let mut made = made.iter_mut();
    for (place, line) in request.iter().enumerate() {
        let mut left = line.change.quantity().map_or(0, Quantity::units);
        while left > 0
            && let Some(made) = made.next()
        {
            made.request_line = Some(place);
            left -= made.quantity;
        }
    }
}

impl From<Deducted> for Ordered {
    /// An order of one line.
    fn from(deducted: Deducted) -> Self {
        Self {
            operation: deducted.operation,
            lines: vec![OrderedLine {
                line: 0,
                request_line: None,
                sku: deducted.sku,
                warehouse: deducted.warehouse,
                quantity: deducted.quantity,
                remaining: deducted.remaining,
            }],
            strategy: deducted.strategy,
            replayed: deducted.replayed,
        }
    }
}

impl Ordered {
    pub(super) fn new(made: Changed, strategy: &'static str) -> Self {
        Self {
            operation: made.operation,
            lines: made.lines.into_iter().map(OrderedLine::from).collect(),
            strategy: strategy.into(),
            replayed: made.replayed,
        }
    }
}

impl From<Changed> for AdjustedLines {
    fn from(made: Changed) -> Self {
        let line = |made: MadeLine| AdjustedLine {
            line: made.line,
            sku: made.sku,
            warehouse: made.warehouse,
            delta: made.delta,
            remaining: made.remaining,
        };
        Self {
            operation: made.operation,
            lines: made.lines.into_iter().map(line).collect(),
        }
    }
}

impl From<Changed> for Adjusted {
    fn from(made: Changed) -> Self {
        let operation = made.operation;
        let line = made.only_line();
        Self {
            operation,
            sku: line.sku,
            warehouse: line.warehouse,
            delta: line.delta,
            remaining: line.remaining,
        }
    }
}

impl Reversed {
    /// The answer to the reversal of a sale.
    #[must_use]
    pub fn new(made: Changed, reverses: OperationId, restock: bool, by_line: bool) -> Self {
        let operation = made.operation;
        if by_line {
            return Self::Lines(ReversedLines {
                operation,
                reverses,
                restock,
                lines: made.lines.into_iter().map(OrderedLine::from).collect(),
            });
        }
        let line = made.only_line();
        Self::Line(ReversedLine {
            operation,
            reverses,
            sku: line.sku,
            warehouse: line.warehouse,
            quantity: line.returned.unwrap_or_default(),
            restock,
            remaining: line.remaining,
        })
    }
}
