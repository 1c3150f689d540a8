//! The numbers of the model.

use async_trait::async_trait;

use super::{MemoryBackend, Question};
use crate::backend::{Changed, NumberKey, NumberRequest, Numbers};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::{Nonce, REMEMBERED};
use crate::shared::token::Token;

impl MemoryBackend {
    async fn value(&self, key: &NumberKey) -> Result<i64, BackendError> {
        let key = key.clone();
        self.ask(Question::Read, move |server| {
            server.numbers.value(server.clock.now(), &key)
        })
        .await
    }
}

#[async_trait]
impl Numbers for MemoryBackend {
    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Reduce, move |server| {
            let now = server.clock.now();
            let is_held = server.shares.reduce(now, &name, nonce, keep);
            (!is_held).then(|| server.revoked.reason(now, nonce))
        })
        .await
    }

    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError> {
        let request = request.clone();
        self.ask(Question::Change, move |server| {
            let now = server.clock.now();
            let changed = server.numbers.change(now, &request, REMEMBERED);
            if !server.lose_wake_up() {
                server.numbers.changed.publish(&request.key.topic());
            }
            changed
        })
        .await?
    }

    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError> {
        let mut changed = self.server.numbers.changed.listen(&key.topic());
        let value = self.value(key).await?;
        if other_than != Some(value) {
            return Ok(value);
        }
        let clock = &self.server.clock;
        tokio::select! {
            () = changed.changed() => {}
            () = clock.sleep_until(clock.now() + self.fallback) => {}
        }
        self.value(key).await
    }

    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Read, move |server| {
            server.shares.tokens(server.clock.now(), &name)
        })
        .await
    }
}
