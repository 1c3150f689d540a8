//! One row of the ledger.
//!
//! The same struct is written and read back. Column names are field names.

use std::borrow::Cow;

use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

use super::rows::rows;
use super::statement::{Value, values};
use crate::{Result, StoreError};
use stocklock_core::plan::Plan;
use stocklock_core::stock::{
    Movement, MovementKind, Operation, OperationId, Quantity, Remarks, RequestHash, Sku,
    StockLevel, Warehouse,
};

rows! {
    /// A movement as the ledger stores it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct LedgerRow {
        pub(crate) operation_id: Uuid,
        pub(crate) line: i64,
        pub(crate) sku: Sku as String,
        pub(crate) warehouse: Warehouse as String,
        pub(crate) kind: MovementKind as String,
        pub(crate) delta: i64,
        /// Units added to `held`.
        pub(crate) held_delta: i64,
        /// Units available right after the movement. Zero until the write has computed it.
        pub(crate) available_after: i64,
        /// The version of the level after the movement. Zero until the write has computed it.
        pub(crate) level_version: i64,
        /// The version of the level that the movement was computed from, if the level was read first.
        pub(crate) read_version: Option<i64>,
        pub(crate) strategy: Option<String>,
        pub(crate) caller: Cow<'static, str> as String,
        pub(crate) idempotency_key: Option<String>,
        pub(crate) request_hash: Option<Vec<u8>>,
        pub(crate) remarks: Remarks = remarks,
        /// The sale, if the movement is its return; the hold, if it is its end.
        pub(crate) reverses: Option<Uuid>,
        /// How many units came back, if the movement is a return.
        pub(crate) returned: Option<i64>,
        /// RFC 3339, UTC. Empty until the database has recorded the row.
        pub(crate) created_at: String,
    }
}

impl LedgerRow {
    /// The sale of an operation's first line. `read_version`: the version of the level that it was computed
    /// from, if that was read first.
    pub(crate) fn of_sale(
        operation: &Operation,
        quantity: Quantity,
        read_version: Option<i64>,
    ) -> Self {
        Self {
            read_version,
            ..Self::new(
                operation,
                (&operation.first().sku, &operation.first().warehouse),
                MovementKind::Deducted,
                -quantity.units(),
            )
        }
    }

    /// The movement of a plan that has no other, if its line is the first.
    pub(crate) fn of_plan(plan: &Plan<'_>) -> Option<Self> {
        let ([level], [movement]) = (&plan.levels[..], &plan.movements[..]) else {
            return None;
        };
        if movement.ledger_line > 0 || movement.held_delta != 0 {
            return None;
        }
        let before = level.read.as_ref();
        Some(Self {
            available_after: before.map_or(0, StockLevel::available) + level.available_delta,
            level_version: before.map_or(0, |level| level.version) + level.movements,
            read_version: movement.read_version,
            reverses: movement.reverses.map(|sale| sale.0),
            returned: movement.returned,
            ..Self::new(
                movement.operation,
                (level.sku, level.warehouse),
                movement.kind.clone(),
                movement.delta,
            )
        })
    }

    fn new(
        operation: &Operation,
        (sku, warehouse): (&Sku, &Warehouse),
        kind: MovementKind,
        delta: i64,
    ) -> Self {
        let key = operation.idempotency.as_ref();
        Self {
            operation_id: operation.id.0,
            line: 0,
            sku: sku.clone(),
            warehouse: warehouse.clone(),
            kind,
            delta,
            held_delta: 0,
            available_after: 0,
            level_version: 0,
            read_version: None,
            strategy: operation.strategy.map(str::to_owned),
            caller: operation.caller.clone().into(),
            idempotency_key: key.map(|one| one.key.as_str().to_owned()),
            request_hash: key.map(|one| one.hash.0.to_vec()),
            remarks: operation.remarks.clone(),
            reverses: None,
            returned: None,
            created_at: String::new(),
        }
    }

    /// How many values [`LedgerRow::known`] has.
    pub(crate) const KNOWN: usize = 10 + Remarks::NAMES.len();

    /// The values of every insert that are known before the write.
    pub(crate) fn known(&self) -> Vec<Value<'_>> {
        let known = values![
            self.operation_id,
            self.sku.as_str(),
            self.warehouse.as_str(),
            self.kind.as_str(),
            self.delta,
            self.read_version,
            self.strategy.as_deref(),
            &*self.caller,
            self.idempotency_key.as_deref(),
            self.request_hash.as_deref(),
        ];
        let remarks = self.remarks.texts().map(Value::from);
        [&known[..], &remarks].concat()
    }

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
            caller: self.caller.into_owned(),
            idempotency_key: self.idempotency_key,
            request_hash: hash
                .map_err(|bytes| {
                    let length = bytes.len();
                    StoreError::Bug(format!("the ledger has a hash of {length} bytes").into())
                })?
                .map(RequestHash),
            remarks: self.remarks,
            reverses: self.reverses.map(OperationId),
            returned: self.returned,
            created_at: self.created_at,
        })
    }
}

/// Reads the columns of [`Remarks`].
fn remarks<'r, R: Row>(row: &'r R) -> sqlx::Result<Remarks>
where
    &'static str: ColumnIndex<R>,
    Option<String>: Decode<'r, R::Database> + Type<R::Database>,
{
    let mut texts = [const { None }; Remarks::NAMES.len()];
    for (text, name) in texts.iter_mut().zip(Remarks::NAMES) {
        *text = row.try_get(name)?;
    }
    Ok(Remarks::recorded(texts))
}
