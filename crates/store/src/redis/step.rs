//! What every way of changing a level needs.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::{KEY_MEMORY, OPERATION_MEMORY, RedisStore};
use crate::StoreError;
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Idempotency, OperationId, Sku, Warehouse};

/// One operation on one level.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) operation: OperationId,
    /// The key of the level.
    pub(super) level: Arc<str>,
    /// That of its journal.
    pub(super) journal: String,
    /// That of the journal's tally.
    pub(super) tally: String,
    /// The name under which the operation is remembered.
    pub(super) name: String,
    pub(super) movement: String,
    /// How long the operation is remembered.
    pub(super) memory: Duration,
}

/// Units to take by one.
#[derive(Debug)]
pub(super) struct Taking {
    pub(super) step: Arc<Step>,
    pub(super) units: i64,
    /// Whether SQL need not be asked for the operation's key.
    pub(super) sure: bool,
}

impl RedisStore {
    pub(super) async fn step(
        &self,
        (sku, warehouse): (&Sku, &Warehouse),
        row: &LedgerRow,
        idempotency: Option<&Idempotency>,
    ) -> Result<Step, StoreError> {
        let keys = self.keys().await?;
        let of_sku = keys.of(sku);
        let operation = OperationId(row.operation_id);
        Ok(Step {
            operation,
            level: of_sku.level(warehouse).into(),
            journal: keys.journal(of_sku.shard),
            tally: keys.tally(of_sku.shard),
            name: of_sku.memory(operation, idempotency),
            movement: row.to_journal_text(),
            memory: idempotency.map_or(OPERATION_MEMORY, |_| KEY_MEMORY),
        })
    }
}

impl Step {
    /// Adds the keys that the scripts which change a level share.
    pub(super) fn write_keys(&self, command: &mut Cmd) {
        command
            .arg(&*self.level)
            .arg(&self.journal)
            .arg(&self.tally);
    }

    /// Adds the arguments that the scripts read as an operation, all but its name; `sure` where SQL
    /// need not be asked for its key.
    pub(super) fn write_arguments(&self, sure: bool, command: &mut Cmd) {
        command
            .arg(&self.movement)
            .arg(self.kept())
            .arg(u8::from(sure));
    }

    /// For how many milliseconds it is remembered.
    pub(super) fn kept(&self) -> u64 {
        u64::try_from(self.memory.as_millis()).unwrap_or(u64::MAX)
    }
}
