//! What Redis remembers of operations: enough to give the first answer again.

use super::failure::bad_answer;
use super::{RedisStore, Step};
use crate::stock::{Idempotency, Movement, OperationId, Sku};
use crate::store::StoreError;
use crate::store::journal::{EntryId, Note};

impl RedisStore {
    /// The movement that is remembered under this key, or under this operation where there is none.
    pub(in crate::store) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let name = self.keys().await?.memory(sku, operation, idempotency);
        let memory: Option<String> = self.shared.read(redis::cmd("GET").arg(name)).await?;
        memory.map(|memory| movement(&memory)).transpose()
    }

    /// Looks in SQL for what may be forgotten here, and remembers it again; answers whether it was
    /// found. What a journal still holds is not forgotten; what a follower has read before a loss,
    /// and has not yet recorded, is missed.
    pub(super) async fn recall(&self, step: &Step<'_>) -> Result<bool, StoreError> {
        let (sku, key) = (step.sku, step.idempotency);
        let recorded = self.sql.recorded(sku, step.operation, key).await?;
        // In SQL a key is its caller's only once; here each SKU has its own.
        let (Some(key), Some(movement)) = (key, recorded.filter(|found| found.sku == *sku)) else {
            return Ok(false);
        };
        let available = movement.available_after;
        let note = note_of(movement, key);
        // No answer tells the time of the entry that it once was.
        let memory = format!("{} {available} {}", EntryId::default(), note.to_text());
        let mut set = redis::cmd("SET");
        set.arg(step.name()).arg(memory).arg("NX").arg("PX");
        let kept = u64::try_from(step.memory.as_millis()).unwrap_or(u64::MAX);
        // Nothing changes by it that a repeat would do again.
        let _: Option<String> = self.shared.read(set.arg(kept)).await?;
        Ok(true)
    }
}

/// What the ledger says of a movement that was made under `key`.
fn note_of(movement: Movement, key: &Idempotency) -> Note {
    Note {
        operation: movement.operation.0,
        sku: movement.sku.into(),
        warehouse: movement.warehouse.into(),
        kind: movement.kind,
        delta: movement.delta,
        read_version: movement.read_version,
        strategy: movement.strategy,
        caller: key.caller.as_str().to_owned(),
        key: Some(key.key.as_str().to_owned()),
        hash: movement.request_hash.map(|hash| hash.0.to_vec()),
        reason: movement.reason,
        reference: movement.reference,
    }
}

/// Reads what the scripts write: the entry's id, the units available after it, the movement.
fn movement(memory: &str) -> Result<Movement, StoreError> {
    let parsed = || {
        let mut words = memory.splitn(3, ' ');
        let id = words.next()?.parse().ok()?;
        let available = words.next()?.parse().ok()?;
        let note = Note::parse(words.next()?).ok()?;
        note.movement(id, available).ok()
    };
    parsed().ok_or_else(|| bad_answer(memory))
}
