//! What replicas of the model do: each step is one command to a server.

use std::sync::{Arc, Mutex, MutexGuard};

use stocklock_core::model::yield_once;

use super::{FIRST_ID, Loaded, Safeguard, State};
use crate::journal::JournalEntry;
use crate::redis::idempotency::KeyCheck;
use crate::redis::scripts::Answer::{self, Absent, Duplicate, KeyMayBeLost};

#[derive(Clone)]
pub(super) struct Model(Arc<Mutex<State>>);

impl Model {
    pub(super) fn new(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no step panics")
    }

    /// One command to a server. Other tasks can run before it.
    pub(super) async fn step<T>(
        &self,
        name: &'static str,
        command: impl FnOnce(&mut State) -> T,
    ) -> T {
        yield_once().await;
        let mut state = self.state();
        state.decisions.note(name);
        let result = command(&mut state);
        let last = state.history.last();
        if last.is_some_and(|last| *last != state.redis) {
            let redis = state.redis.clone();
            state.history.push(redis);
        }
        result
    }

    /// Sells one unit, as `RedisStore::try_deduct` does.
    pub(super) async fn sell(&self, operation: u128, has_key: bool) -> Answer {
        let mut check = if has_key {
            KeyCheck::Needed
        } else {
            KeyCheck::NotNeeded
        };
        loop {
            let deduct = |state: &mut State| state.deduct(operation, has_key, check);
            match self.step("DEDUCT", deduct).await {
                Absent => self.load().await,
                KeyMayBeLost { .. } if self.step("SELECT the key", State::has_key).await => {
                    return Duplicate;
                }
                KeyMayBeLost { loaded } => check = KeyCheck::Done { loaded },
                settled => return settled,
            }
        }
    }

    async fn load(&self) {
        loop {
            let before = self.step("HGET", |state| state.redis.since).await;
            let mirror = self.step("SELECT", |state| state.mirror.clone()).await;
            match self.step("LOAD", |state| state.load(before, &mirror)).await {
                Loaded::Done => return,
                Loaded::Again => {}
                Loaded::Unbound => self.bind().await,
            }
        }
    }

    /// Binds the ledger until the key has the id of the row, as `Binding::step` does.
    async fn bind(&self) {
        loop {
            let found = self.step("GET the key", |state| state.redis.binding).await;
            let row = self.step("SELECT the row", |state| state.row).await;
            let (id, is_used) = row;
            if found.is_none() && is_used && self.state().has(Safeguard::NewId) {
                self.step("UNLINK", |state| state.redis.level = None).await;
                let next = (id + 1, false);
                self.step("UPDATE the row", |state| state.bind(row, next))
                    .await;
            } else if found.is_none() {
                let write = |state: &mut State| _ = state.redis.binding.get_or_insert(id);
                self.step("SET the key", write).await;
            } else if !is_used {
                let next = (id, true);
                self.step("UPDATE the row", |state| state.bind(row, next))
                    .await;
            } else {
                return;
            }
        }
    }

    /// A consumer ends a batch that it has read with the first id.
    pub(super) async fn finish(&self, consumer: u32, entries: &[Arc<JournalEntry>]) {
        let apply = |state: &mut State| state.apply(FIRST_ID, entries);
        let Some(applied) = self.step("apply", apply).await else {
            return;
        };
        let ack = |state: &mut State| state.ack(consumer, entries, applied);
        self.step("ACK", ack).await;
    }
}
