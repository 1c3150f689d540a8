//! The ledger: one movement for every change of a level, never altered afterwards.

use serde::{Deserialize, Serialize};

use super::{Durability, OperationId, RequestHash, Sku, Warehouse};

/// What kind of change a movement records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MovementKind {
    /// Units came in.
    Received,
    /// Units were sold.
    Deducted,
    /// A correction: breakage, a count, a changed limit.
    Adjusted,
}

impl MovementKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Received, Self::Deducted, Self::Adjusted];

    /// The name at every edge.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Deducted => "deducted",
            Self::Adjusted => "adjusted",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Movement {
    /// The operation that it belongs to.
    pub operation: OperationId,
    /// What moved.
    pub sku: Sku,
    /// Where.
    pub warehouse: Warehouse,
    /// Why.
    pub kind: MovementKind,
    /// Units added to `on_hand`; negative for a sale.
    pub delta: i64,
    /// Units available right after it.
    pub available_after: i64,
    /// The version that a read-check-write had read. Two movements of one level with the same one
    /// are a lost update: both computed their result from the same state.
    pub read_version: Option<i64>,
    /// The strategy that protected it; `None` for what is not a deduction.
    pub strategy: Option<String>,
    /// How durable it was when it was acknowledged.
    pub durability: Durability,
    /// The hash of the request, where it carried an idempotency key.
    pub request_hash: Option<RequestHash>,
    /// The reason given, where there was one.
    pub reason: Option<String>,
    /// What it belongs to outside, where that was given.
    pub reference: Option<String>,
    /// When the database recorded it: RFC 3339, UTC.
    pub created_at: String,
}

/// Which movements to read: newest operation first, at most `limit`.
#[derive(Debug, Clone)]
pub struct MovementFilter {
    /// Of which SKU.
    pub sku: Sku,
    /// Of this warehouse only.
    pub warehouse: Option<Warehouse>,
    /// Of this kind only.
    pub kind: Option<MovementKind>,
    /// With this reference only.
    pub reference: Option<String>,
    /// Older than this operation only.
    pub before: Option<OperationId>,
    /// At most so many.
    pub limit: u32,
}
