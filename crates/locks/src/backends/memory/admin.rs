//! Looking into the locks of the model, and taking them away.

use async_trait::async_trait;

use super::{MemoryBackend, Question};
use crate::backend::{Admin, Claim};
use crate::claims::LockView;
use crate::shared::error::BackendError;
use crate::shared::nonce::Nonce;

#[async_trait]
impl Admin for MemoryBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        self.ask(Question::Ping, |_| ()).await
    }

    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Read, move |server| server.inspect(&name, claim))
            .await
    }

    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError> {
        let name = name.to_owned();
        self.ask(Question::Revoke, move |server| {
            let now = server.clock.now();
            let view = server.inspect(&name, claim);
            let is_freed = server.revoked.take_away(now, &view, nonce, || match claim {
                Claim::Exclusive => server.table.release(now, &name, nonce),
                Claim::Permits { .. } => server.shares.release(now, &name, nonce),
            });
            if is_freed {
                server.add_tombstone(nonce);
            }
            if is_freed && claim == Claim::Exclusive && !server.lose_wake_up() {
                server.table.freed.publish(&name);
            }
            server.revoked.contains(now, nonce)
        })
        .await
    }
}
