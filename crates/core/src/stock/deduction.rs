//! The answer to a deduction of one level.

use std::borrow::Cow;

use serde::Serialize;

use super::{OperationId, Sku, Warehouse};

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
