//! Changes of a level that are not sales: setting it, and adjusting it.

use super::{Home, Idempotency, OperationId, Remark, Revision, Sku, Warehouse};

/// A condition on the SKU. If it does not hold, the store refuses the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Precondition {
    /// It has levels (`If-Match: *`).
    Exists,
    /// It has no level (`If-None-Match: *`).
    Absent,
    /// Its levels are in one of these states, which the caller read before (`If-Match: "…"`).
    OneOf(Vec<Revision>),
}

/// Sets a level; creates it if there is none.
#[derive(Debug, Clone)]
pub struct LevelChange {
    /// The operation id of the movement that records the difference.
    pub operation: OperationId,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// The new level.
    pub on_hand: i64,
    /// The new backorder limit; `None` keeps the old one (zero for a new level).
    pub backorder_limit: Option<i64>,
    /// The home. An existing level must already have it; `None` keeps it.
    pub home: Option<Home>,
    /// The reason.
    pub reason: Option<Remark>,
    /// The store makes the change only if this holds.
    pub precondition: Option<Precondition>,
}

/// Adds units to a level or takes them from it.
#[derive(Debug, Clone)]
pub struct Adjustment {
    /// The operation id of the movement that records the adjustment.
    pub operation: OperationId,
    /// The SKU.
    pub sku: Sku,
    /// The warehouse.
    pub warehouse: Warehouse,
    /// Units added (positive) or taken (negative). Never zero.
    pub delta: i64,
    /// The reason.
    pub reason: Remark,
    /// An identifier from another system, such as an order number.
    pub reference: Option<Remark>,
    /// The caller's key, if one was sent.
    pub idempotency: Option<Idempotency>,
}
