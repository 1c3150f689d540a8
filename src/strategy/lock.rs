//! What a lock strategy asks of a lock, and the lock crate behind it.
//!
//! Two small traits stand in between, so that the tests can put a model there whose leases end
//! whenever a schedule wants it.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use stocklock_locks::{LockError, LockGuard, LockManager, ReleaseOutcome};

use super::Service;
use crate::stock::Fence;

/// Distributed locks of one service, by name.
#[async_trait]
pub trait Lock: Send + Sync + fmt::Debug {
    /// The service that has them.
    fn service(&self) -> Service;

    /// Waits for the lock with that name, at most for `wait`.
    ///
    /// # Errors
    /// [`LockError::WaitLimit`] where others held it all the time, [`LockError::Unavailable`] where
    /// the service gave no answer.
    ///
    /// # Cancel safety
    /// May be dropped; nothing is left behind.
    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn Held>, LockError>;

    /// One cheap round trip.
    ///
    /// # Errors
    /// A sentence that says why the service gave no answer.
    async fn ping(&self) -> Result<(), String>;

    /// Gives up what is held, and closes connections and sessions.
    async fn close(&self);
}

/// A lock that was acquired, and may have been lost since.
#[async_trait]
pub trait Held: Send + Sync + fmt::Debug {
    /// Which acquisition this is.
    fn fence(&self) -> Fence;

    /// Whether it is known here to be lost; looks at the clock, asks nobody.
    fn is_lost(&self) -> bool;

    /// Gives it up.
    ///
    /// # Cancel safety
    /// May be dropped at any point: the release goes on in the background.
    async fn release(self: Box<Self>);
}

/// The locks of a [`LockManager`].
#[derive(Debug)]
pub struct ManagedLock {
    service: Service,
    /// The strategy's name: what metrics count its locks under.
    label: &'static str,
    manager: LockManager,
}

impl ManagedLock {
    /// Locks of `manager`, counted as those of the strategy `label`.
    #[must_use]
    pub fn new(service: Service, label: &'static str, manager: LockManager) -> Self {
        Self {
            service,
            label,
            manager,
        }
    }
}

#[async_trait]
impl Lock for ManagedLock {
    fn service(&self) -> Service {
        self.service
    }

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn Held>, LockError> {
        let lock = self.manager.lock(name).label(self.label).wait(wait);
        Ok(Box::new(lock.acquire().await?))
    }

    async fn ping(&self) -> Result<(), String> {
        self.manager.ping().await.map_err(|error| error.to_string())
    }

    async fn close(&self) {
        self.manager.shutdown().await;
    }
}

#[async_trait]
impl Held for LockGuard {
    fn fence(&self) -> Fence {
        Fence {
            token: self.token().get(),
            source: self.source().into(),
        }
    }

    fn is_lost(&self) -> bool {
        self.check().is_err()
    }

    async fn release(self: Box<Self>) {
        if let ReleaseOutcome::Unconfirmed { .. } = LockGuard::release(*self).await {
            tracing::debug!("the service has not confirmed a release yet; it is being repeated");
        }
    }
}
