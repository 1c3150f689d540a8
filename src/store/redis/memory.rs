//! What Redis remembers of operations: enough to give the first answer again.

use super::RedisStore;
use super::failure::bad_answer;
use crate::stock::{Idempotency, Movement, OperationId, Sku};
use crate::store::StoreError;
use crate::store::journal::Note;

impl RedisStore {
    /// The movement that is remembered under this operation, or else under this key.
    pub(in crate::store) async fn remembered(
        &self,
        sku: &Sku,
        operation: OperationId,
        idempotency: Option<&Idempotency>,
    ) -> Result<Option<Movement>, StoreError> {
        let keys = self.keys().await?;
        let mut command = redis::cmd("MGET");
        command.arg(keys.operation(sku, operation));
        if let Some(idempotency) = idempotency {
            command.arg(keys.idempotency(sku, idempotency));
        }
        let memories: Vec<Option<String>> = self.shared.read(&command).await?;
        let memory = memories.into_iter().flatten().next();
        memory.map(|memory| movement(&memory)).transpose()
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
