//! What Redis remembers of operations: enough to give the first answer again.

use super::RedisStore;
use super::failure::bad_answer;
use crate::stock::{Idempotency, Movement, OperationId, Sku};
use crate::store::StoreError;
use crate::store::journal::Note;

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
