//! What Redis remembers of operations: enough to give the first answer again.

use super::RedisStore;
use super::failure::bad_answer;
use super::step::Step;
use crate::StoreError;
use crate::journal::{EntryId, line, parse_line};
use crate::sql::ledger_row::LedgerRow;
use stocklock_core::stock::{Idempotency, Movement, OperationId, Sku};

impl RedisStore {
    /// The movement that is remembered under this key, or under this operation where there is none.
    pub(crate) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let name = self.keys().await?.of(sku).memory(operation, idempotency);
        let memory: Option<String> = self.shared.read(redis::cmd("GET").arg(name)).await?;
        memory.map(|memory| movement(&memory)).transpose()
    }

    /// Looks in SQL for what may be forgotten here, and remembers it again; answers whether it was
    /// found. What a journal still holds is not forgotten; what a follower has read before a loss,
    /// and has not yet recorded, is missed.
    pub(super) async fn recall(
        &self,
        step: &Step,
        sku: &Sku,
        key: Option<&Idempotency>,
    ) -> Result<bool, StoreError> {
        let recorded = self.sql.recorded(sku, step.operation, key).await?;
        // In SQL a key is its caller's only once; here each SKU has its own.
        let (Some(key), Some(movement)) = (key, recorded.filter(|found| found.sku == *sku)) else {
            return Ok(false);
        };
        let available = movement.available_after;
        let row = LedgerRow::from_movement(movement, key);
        let memory = line(available, &row.to_journal_text());
        let mut set = redis::cmd("SET");
        set.arg(&step.name).arg(memory).arg("NX").arg("PX");
        // Nothing changes by it that a repeat would do again.
        let _: Option<String> = self.shared.read(set.arg(step.kept())).await?;
        Ok(true)
    }
}

/// What is remembered is the line that the journal got.
fn movement(memory: &str) -> Result<Movement, StoreError> {
    // Redis does not keep the id of the entry, and so not its time.
    let row = parse_line(memory, EntryId::default()).map_err(|_| bad_answer(memory))?;
    row.movement()
}
