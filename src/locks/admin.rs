//! The locks of a replica as operators see them, for the laboratory.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use stocklock_core::strategy::Strategy;
use stocklock_locks::{LockError, LockManager, LockView, Nonce};

/// The locks of one strategy.
#[async_trait]
pub(super) trait LockAdmin: Debug + Send + Sync {
    async fn inspect(&self, name: &str) -> Result<LockView, LockError>;

    async fn revoke(&self, name: &str, holder: Nonce) -> Result<bool, LockError>;
}

#[async_trait]
impl<T: Debug + 'static> LockAdmin for LockManager<T> {
    async fn inspect(&self, name: &str) -> Result<LockView, LockError> {
        self.lock(name).inspect().await
    }

    async fn revoke(&self, name: &str, holder: Nonce) -> Result<bool, LockError> {
        self.lock(name).revoke(holder).await
    }
}

/// The locks of each strategy. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LockAdmins(Vec<(Strategy, Arc<dyn LockAdmin>)>);

impl LockAdmins {
    pub(super) fn add<T: Debug + 'static>(&mut self, strategy: Strategy, locks: &LockManager<T>) {
        self.0.push((strategy, Arc::new(locks.clone())));
    }

    /// Who has the lock with this name, and who waits for it, at each strategy. Asks all servers at once.
    pub(crate) async fn inspect(&self, name: &str) -> Vec<(Strategy, Result<LockView, LockError>)> {
        let views = self
            .0
            .iter()
            .map(|(strategy, locks)| async move { (*strategy, locks.inspect(name).await) });
        join_all(views).await
    }

    /// Takes the lock of a strategy away from this holder. Returns whether it had it. `None` if this replica
    /// has no such locks.
    pub(crate) async fn revoke(
        &self,
        strategy: Strategy,
        name: &str,
        holder: Nonce,
    ) -> Option<Result<bool, LockError>> {
        let (_, locks) = self.0.iter().find(|(user, _)| *user == strategy)?;
        Some(locks.revoke(name, holder).await)
    }
}
