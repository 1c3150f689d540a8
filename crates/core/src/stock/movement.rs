//! The ledger: one movement for every change of a level. Movements are never altered.

use serde::{Deserialize, Serialize, Serializer};

use super::{OperationId, Remark, RequestHash, Sku, Warehouse};

/// What kind of change a movement records.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MovementKind {
    /// Units came in.
    Received,
    /// Units were sold.
    Deducted,
    /// A correction: breakage, a count, a changed limit.
    Adjusted,
    /// Units of a sale came back.
    Returned,
    /// Units were set aside for a caller.
    Held,
    /// Held units were given back.
    Released,
    /// Held units were given back, because their time was over.
    Expired,
    /// A kind that only a later release records. Requests cannot name it.
    #[serde(skip)]
    Other(String),
}

impl MovementKind {
    /// The kind of a change that is not a sale. A gain is a receipt. A loss, or a change of the limit
    /// only, is a correction.
    #[must_use]
    pub fn of_change(delta: i64) -> Self {
        if delta > 0 {
            Self::Received
        } else {
            Self::Adjusted
        }
    }

    /// The name in the API and in the ledger.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Received => "received",
            Self::Deducted => "deducted",
            Self::Adjusted => "adjusted",
            Self::Returned => "returned",
            Self::Held => "held",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Other(name) => name,
        }
    }
}

impl From<String> for MovementKind {
    fn from(name: String) -> Self {
        match &*name {
            "received" => Self::Received,
            "deducted" => Self::Deducted,
            "adjusted" => Self::Adjusted,
            "returned" => Self::Returned,
            "held" => Self::Held,
            "released" => Self::Released,
            "expired" => Self::Expired,
            _ => Self::Other(name),
        }
    }
}

impl Serialize for MovementKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// One row of the ledger.
// The comments are in the API's document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MovementBody))]
pub struct Movement {
    /// The id of the operation.
    #[serde(rename = "id")]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub operation: OperationId,
    /// Its line in the operation, from 0. A return has the line of its sale, the end of a hold that of the hold.
    pub line: i64,
    /// The SKU.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub sku: Sku,
    /// The warehouse.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub warehouse: Warehouse,
    /// `received`, `deducted`, `adjusted`, `returned`, `held`, `released` or `expired`. A later release may have recorded other kinds.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub kind: MovementKind,
    /// Units added; negative for a sale.
    pub delta: i64,
    /// Units set aside; negative if they are no longer.
    pub held_delta: i64,
    /// Units available after the movement.
    pub available_after: i64,
    /// The version of the level after the movement: its place in the order of the level's commits, without
    /// gaps.
    pub level_version: i64,
    /// The version that a read-check-write strategy or a PUT had read. Two movements with the same
    /// version are a lost update.
    pub read_version: Option<i64>,
    /// The strategy of a deduction.
    pub strategy: Option<String>,
    /// Who sent the request.
    pub caller: String,
    /// The Idempotency-Key of the request. Only the first line of an operation has it.
    pub idempotency_key: Option<String>,
    /// The hash of the request, if it had an idempotency key.
    #[serde(skip)]
    pub request_hash: Option<RequestHash>,
    /// The reason of a change that is not a deduction.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Remark>,
    /// The external reference.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reference: Option<Remark>,
    /// The id of the sale, if units of it came back; of the hold, if it ended.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reverses: Option<OperationId>,
    /// How many units came back. They are in `delta` only if they are on hand again.
    pub returned: Option<i64>,
    /// When it was recorded: RFC 3339, UTC.
    pub created_at: String,
}
