//! The lines of orders and holds: from which warehouses units come.

use serde::Deserialize;
use utoipa::ToSchema;

use super::{ApiError, present, present_whole};
use stocklock_core::stock::{Change, Line, MAX_LINES, Quantity, Sku, Warehouse};

/// How many warehouses a line may name.
pub(super) const MAX_WAREHOUSES: usize = 10;

/// A line of an order.
#[derive(Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderLine {
    /// The SKU. Several lines may have the same.
    #[schema(value_type = String, example = "1001")]
    sku: Sku,
    /// The warehouse; default `main`.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<String>, example = "main")]
    warehouse: Option<Warehouse>,
    /// Instead of `warehouse`: 2 to 10 warehouses, in the order of preference. The units come from the first one
    /// that has them all.
    #[serde(default, deserialize_with = "present")]
    #[schema(value_type = Option<Vec<String>>)]
    warehouses: Option<Vec<Warehouse>>,
    /// Whether units may come from several of the warehouses, if none has them all: from each what it has, in
    /// their order; default `false`.
    #[serde(default, deserialize_with = "present")]
    split: Option<bool>,
    /// Number of units; default 1.
    #[serde(default, deserialize_with = "present_whole")]
    #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
    quantity: Option<Quantity>,
}

impl OrderLine {
    /// The line of the operation, which makes `change` of its units.
    pub(super) fn line(self, change: impl Fn(Quantity) -> Change) -> Line {
        let mut warehouses = self.warehouses.unwrap_or_default().into_iter();
        let first = self.warehouse.or_else(|| warehouses.next());
        let change = change(self.quantity.unwrap_or(Quantity::ONE));
        Line {
            others: warehouses.collect(),
            split: self.split.unwrap_or_default(),
            ..Line::new(self.sku, first.unwrap_or_default(), change)
        }
    }

    fn check(&self) -> Result<(), String> {
        let Some(warehouses) = &self.warehouses else {
            let is_valid = self.split.is_none();
            let problem = || "split: is for a line with warehouses".to_owned();
            return is_valid.then_some(()).ok_or_else(problem);
        };
        if self.warehouse.is_some() {
            return Err("send either warehouse or warehouses, not both".to_owned());
        }
        if !(2..=MAX_WAREHOUSES).contains(&warehouses.len()) {
            return Err(format!(
                "warehouses: must have 2 to {MAX_WAREHOUSES} elements"
            ));
        }
        let mut names = warehouses.iter().enumerate();
        if names.any(|(place, name)| warehouses[..place].contains(name)) {
            return Err("warehouses: a name is there twice".to_owned());
        }
        Ok(())
    }
}

/// The lines of an order, and whether it was sent by line: otherwise these are the fields of its only line.
pub(super) fn order_lines(
    (sku, warehouse, quantity): (Option<Sku>, Option<Warehouse>, Option<Quantity>),
    lines: Option<Vec<OrderLine>>,
    default_sku: Option<Sku>,
) -> Result<(Vec<OrderLine>, bool), ApiError> {
    let Some(lines) = lines else {
        let sku = sku.or(default_sku);
        let sku = sku.ok_or_else(|| ApiError::invalid("sku: missing"))?;
        let line = OrderLine {
            sku,
            warehouse,
            warehouses: None,
            split: None,
            quantity,
        };
        return Ok((vec![line], false));
    };
    if sku.is_some() || warehouse.is_some() || quantity.is_some() {
        return Err(ApiError::invalid(
            "send either lines, or sku, warehouse and quantity, not both",
        ));
    }
    check_lines(&lines)?;
    Ok((lines, true))
}

/// Refuses an operation that would have no line, or too many.
pub(super) fn has_lines(count: usize) -> Result<(), ApiError> {
    if (1..=MAX_LINES).contains(&count) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "lines: must have 1 to {MAX_LINES} elements"
    )))
}

/// Refuses lines that no operation can have.
pub(super) fn check_lines(lines: &[OrderLine]) -> Result<(), ApiError> {
    has_lines(lines.len())?;
    for (number, line) in lines.iter().enumerate() {
        let problem = |problem| ApiError::invalid(format!("lines[{number}]: {problem}"));
        line.check().map_err(problem)?;
    }
    Ok(())
}
