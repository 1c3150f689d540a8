//! One deduction: the request and the answer.

use std::borrow::Cow;

use serde::Serialize;
use tokio::time::Instant;

use super::{Caller, Idempotency, OperationId, Quantity, Remarks, Sku, StockError, Warehouse};

/// A deduction to make.
#[derive(Debug, Clone)]
pub struct Deduction {
    /// Its operation id.
    pub operation: OperationId,
    /// Who sent the request.
    pub caller: Caller,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// How many units.
    pub quantity: Quantity,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
    /// What the caller remarks on it.
    pub remarks: Remarks,
    /// The strategy's name, for the ledger.
    pub strategy: &'static str,
    /// When the caller is answered at the latest. No attempt is made later.
    pub deadline: Instant,
}

impl Deduction {
    /// A deduction of one unit, for unit tests.
    #[cfg(test)]
    pub(crate) fn sample(sku: &str) -> Self {
        Self {
            operation: OperationId::mint(),
            caller: Caller::anonymous(),
            sku: Sku::parse(sku).expect("a valid SKU"),
            warehouse: Warehouse::default(),
            quantity: Quantity::ONE,
            idempotency: None,
            remarks: Remarks::default(),
            strategy: "group-commit",
            deadline: Instant::now() + std::time::Duration::from_secs(5),
        }
    }

    /// The refusal if only this many units are available.
    pub(crate) fn insufficient(&self, available: i64) -> StockError {
        StockError::Insufficient {
            requested: self.quantity.units(),
            available,
        }
    }
}

/// A deduction that was made.
// A retry gets the first answer, rebuilt from the ledger. The comments are in the API's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DeductAnswer))]
pub struct Deducted {
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
    /// Units taken.
    pub quantity: i64,
    /// Units available after the deduction.
    pub remaining: i64,
    /// The strategy that protected it.
    pub strategy: Cow<'static, str>,
    /// Whether this answers a retry of an earlier request.
    #[serde(skip)]
    pub replayed: bool,
}
