//! The ledger: one movement for every change of a level. Movements are never altered.

use serde::Deserialize;

use super::{OperationId, Remarks, RequestHash, Sku, Warehouse};

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

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    /// The operation that it belongs to.
    pub operation: OperationId,
    /// Its line in the operation. A return has the line of its sale, and the end of a hold that of the hold.
    pub line: i64,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// The kind of change.
    pub kind: MovementKind,
    /// Units added to `on_hand`; negative for a sale.
    pub delta: i64,
    /// Units added to `held`; negative if a hold ends.
    pub held_delta: i64,
    /// Units available right after it.
    pub available_after: i64,
    /// Its place in the order of the level's commits: the version of the level after it.
    pub level_version: i64,
    /// The version of the level that it was computed from, if the level was read first: by a
    /// read-check-write strategy, or to set an existing level. Two movements of one level with the
    /// same `read_version` are a lost update: both were computed from the same state.
    pub read_version: Option<i64>,
    /// The strategy that protected it; `None` if it is not a deduction.
    pub strategy: Option<String>,
    /// Who sent the request.
    pub caller: String,
    /// The caller's key, if one was sent.
    pub idempotency_key: Option<String>,
    /// The hash of the request, if it had an idempotency key.
    pub request_hash: Option<RequestHash>,
    /// What the caller remarked on it.
    pub remarks: Remarks,
    /// The sale of which units came back, if it is a return; the hold that ended, if it is the end of one.
    pub reverses: Option<OperationId>,
    /// How many units came back, if it is a return. They are in `delta` only if they are on hand again.
    pub returned: Option<i64>,
    /// When the database recorded it: RFC 3339, UTC.
    pub created_at: String,
}
