//! The ledger: one movement for every change of a level. Movements are never altered.

use serde::{Deserialize, Serialize};

use super::{Durability, OperationId, RequestHash, Sku, Warehouse};
use crate::names::named;

named! {
    /// What kind of change a movement records.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum MovementKind {
        /// Units came in.
        Received = "received",
        /// Units were sold.
        Deducted = "deducted",
        /// A correction: breakage, a count, a changed limit.
        Adjusted = "adjusted",
    }
}

/// One row of the ledger.
// The comments of the serialized fields are in the API's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MovementBody))]
pub struct Movement {
    /// The id of the operation.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// The SKU.
    #[serde(skip)]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// `received`, `deducted` or `adjusted`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: MovementKind,
    /// Units added; negative for a sale.
    pub delta: i64,
    /// Units available after the movement.
    pub available_after: i64,
    /// The version that a read-check-write strategy had read. Two movements with the same version
    /// are a lost update.
    pub read_version: Option<i64>,
    /// The strategy of a deduction.
    pub strategy: Option<String>,
    /// How durable it was when it was answered: `committed` or `redis`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub durability: Durability,
    /// The hash of the request, if it had an idempotency key.
    #[serde(skip)]
    pub request_hash: Option<RequestHash>,
    /// The reason of a change that is not a deduction.
    pub reason: Option<String>,
    /// The external reference.
    pub reference: Option<String>,
    /// When it was recorded: RFC 3339, UTC.
    pub created_at: String,
}

/// Which movements to read, newest operation first.
#[derive(Debug, Clone)]
pub struct MovementFilter {
    /// The SKU.
    pub sku: Sku,
    /// Only this warehouse.
    pub warehouse: Option<Warehouse>,
    /// Only this kind.
    pub kind: Option<MovementKind>,
    /// Only this reference.
    pub reference: Option<String>,
    /// Only movements older than this operation.
    pub before: Option<OperationId>,
    /// The maximum number of movements.
    pub limit: u32,
}
