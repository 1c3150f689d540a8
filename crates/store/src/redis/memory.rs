//! What Redis remembers of operations: enough to give the first answer again.

use std::borrow::Cow;

use super::RedisStore;
use super::failure::bad_answer;
use super::step::Step;
use crate::StoreError;
use crate::journal::{EntryId, Note, Noted, line};
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
        let note = note_of(movement, key);
        let memory = line(available, &note.to_text());
        let mut set = redis::cmd("SET");
        set.arg(&step.name).arg(memory).arg("NX").arg("PX");
        // Nothing changes by it that a repeat would do again.
        let _: Option<String> = self.shared.read(set.arg(step.kept())).await?;
        Ok(true)
    }
}

/// What the ledger says of a movement that was made under `key`.
fn note_of(movement: Movement, key: &Idempotency) -> Note<'_> {
    Note {
        operation: movement.operation.0,
        sku: String::from(movement.sku).into(),
        warehouse: String::from(movement.warehouse).into(),
        kind: movement.kind,
        delta: movement.delta,
        read_version: movement.read_version,
        strategy: movement.strategy.map(Cow::Owned),
        caller: key.caller.as_str().into(),
        key: Some(key.key.as_str().into()),
        hash: movement.request_hash.map(|hash| hash.0.to_vec().into()),
        reason: movement.reason.map(Cow::Owned),
        reference: movement.reference.map(Cow::Owned),
    }
}

/// What is remembered is the line that the journal got.
fn movement(memory: &str) -> Result<Movement, StoreError> {
    // No answer tells the time of the entry that it once was.
    let movement = Noted::parse(memory, EntryId::default()).and_then(Noted::movement);
    movement.map_err(|_| bad_answer(memory))
}
