//! One row of the ledger, as it is read and as it is written.

use uuid::Uuid;

use super::rows::rows;
use super::statement::{Value, values};
use crate::{Result, StoreError};
use stocklock_core::plan::Plan;
use stocklock_core::stock::{
    Idempotency, Movement, MovementKind, Operation, OperationId, Quantity, Remarks, RequestHash,
    Sku, StockLevel, Warehouse,
};

rows! {
    /// A movement as the ledger stores it: the columns of [`Movement`].
    #[derive(Debug)]
    pub(crate) struct LedgerRow {
        operation_id: Uuid,
        line: i64,
        sku: Sku as String,
        warehouse: Warehouse as String,
        kind: MovementKind as String,
        delta: i64,
        held_delta: i64,
        available_after: i64,
        level_version: i64,
        read_version: Option<i64>,
        strategy: Option<String>,
        caller: String,
        idempotency_key: Option<String>,
        request_hash: Option<Vec<u8>>,
        reason: Option<String>,
        reference: Option<String>,
        reverses: Option<Uuid>,
        returned: Option<i64>,
        created_at: String,
    }
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
    pub(crate) fn of_sale(
        operation: &'a Operation,
        quantity: Quantity,
        read_version: Option<i64>,
    ) -> Self {
        Self {
            operation,
            sku: &operation.first().sku,
            warehouse: &operation.first().warehouse,
            kind: SALE.as_str(),
            delta: -quantity.units(),
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

impl LedgerRow {
    /// The movement that the row records. A later release may have recorded it, so its kind may be
    /// any.
    ///
    /// # Errors
    /// [`StoreError::Bug`] if the row has a value that this service does not write.
    pub(crate) fn movement(self) -> Result<Movement> {
        let hash = self.request_hash.map(<[u8; 32]>::try_from).transpose();
        Ok(Movement {
            operation: OperationId(self.operation_id),
            line: self.line,
            sku: self.sku,
            warehouse: self.warehouse,
            kind: self.kind,
            delta: self.delta,
            held_delta: self.held_delta,
            available_after: self.available_after,
            level_version: self.level_version,
            read_version: self.read_version,
            strategy: self.strategy,
            caller: self.caller,
            idempotency_key: self.idempotency_key,
            request_hash: hash
                .map_err(|bytes| {
                    let length = bytes.len();
                    StoreError::Bug(format!("the ledger has a hash of {length} bytes").into())
                })?
                .map(RequestHash),
            remarks: Remarks::recorded([self.reason, self.reference]),
            reverses: self.reverses.map(OperationId),
            returned: self.returned,
            created_at: self.created_at,
        })
    }
}
