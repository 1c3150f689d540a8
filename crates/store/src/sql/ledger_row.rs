//! One row of the ledger, as it is read and as it is written.

use uuid::Uuid;

use super::rows::{converted, rows};
use super::statement::{Value, values};
use stocklock_core::plan::Plan;
use stocklock_core::stock::{
    Idempotency, Movement, MovementKind, Operation, OperationId, Remark, RequestHash, Sku,
    StockLevel, Warehouse,
};

rows! {
    /// A movement as the ledger stores it. A later release may have recorded it, so its kind may be any.
    #[derive(Debug)]
    pub(crate) struct LedgerRow(Movement) {
        operation = |operation_id: Uuid| OperationId(operation_id),
        line,
        sku as String,
        warehouse as String,
        kind as String,
        delta,
        held_delta,
        available_after,
        level_version,
        read_version,
        strategy,
        caller,
        idempotency_key,
        request_hash = |request_hash: Option<Vec<u8>>| request_hash.as_deref().map(hash).transpose()?,
        reason = |reason: Option<String>| reason.map(Remark::recorded),
        reference = |reference: Option<String>| reference.map(Remark::recorded),
        reverses = |reverses: Option<Uuid>| reverses.map(OperationId),
        returned,
        created_at,
    }
}

fn hash(bytes: &[u8]) -> sqlx::Result<RequestHash> {
    converted("request_hash", bytes).map(RequestHash)
}

/// The movements of rows.
pub(crate) fn movements(rows: Vec<LedgerRow>) -> Vec<Movement> {
    rows.into_iter()
        .map(|LedgerRow(movement)| movement)
        .collect()
}

const SALE: &MovementKind = &MovementKind::Deducted;

/// A movement that is written alone, on the first line of its operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRow<'a> {
    operation: &'a Operation,
    sku: &'a Sku,
    warehouse: &'a Warehouse,
    kind: &'a str,
    pub(crate) delta: i64,
    read_version: Option<i64>,
    /// Units available right after it. Zero until the write has computed it.
    pub(crate) available_after: i64,
    /// The version of the level after it. Zero until the write has computed it.
    pub(crate) level_version: i64,
    /// The sale whose units come back.
    pub(crate) reverses: Option<Uuid>,
    /// How many units of it come back.
    pub(crate) returned: Option<i64>,
}

impl<'a> NewRow<'a> {
    /// The sale of an operation's first line. `read_version`: the version of the level that it was computed
    /// from, if that was read first.
    pub(crate) fn of_sale(operation: &'a Operation, read_version: Option<i64>) -> Self {
        let (sku, warehouse) = operation.level();
        Self {
            operation,
            sku,
            warehouse,
            kind: SALE.as_str(),
            delta: -operation.units(),
            read_version,
            available_after: 0,
            level_version: 0,
            reverses: None,
            returned: None,
        }
    }

    /// The movement of a plan that has no other, if its line is the first.
    pub(crate) fn of_plan(plan: &'a Plan<'_>) -> Option<Self> {
        let ([level], [movement]) = (&plan.levels[..], &plan.movements[..]) else {
            return None;
        };
        if movement.ledger_line > 0 || movement.held_delta != 0 {
            return None;
        }
        let before = level.read.as_ref();
        Some(Self {
            operation: movement.operation,
            sku: level.sku,
            warehouse: level.warehouse,
            kind: movement.kind.as_str(),
            delta: movement.delta,
            read_version: movement.read_version,
            available_after: before.map_or(0, StockLevel::available) + level.available_delta,
            level_version: before.map_or(0, |level| level.version) + level.movements,
            reverses: movement.reverses.map(|sale| sale.0),
            returned: movement.returned,
        })
    }

    /// SKU and warehouse.
    pub(crate) fn place(&self) -> [Value<'a>; 2] {
        values![self.sku.as_str(), self.warehouse.as_str()]
    }

    /// The idempotency key.
    pub(crate) fn key(&self) -> Option<&'a Idempotency> {
        self.operation.idempotency.as_ref()
    }

    /// The values of every insert that are known before the write.
    pub(crate) fn known(&self) -> Vec<Value<'a>> {
        let operation = self.operation;
        let known = values![
            operation.id.0,
            self.sku.as_str(),
            self.warehouse.as_str(),
            self.kind,
            self.delta,
            self.read_version,
            operation.strategy,
            operation.caller.as_str(),
            self.key().map(|one| one.key.as_str()),
            self.key().map(|one| &one.hash.0[..]),
        ];
        let remarks = operation.remarks.texts().map(Value::from);
        [&known[..], &remarks].concat()
    }
}
