//! Distributed locks, as the strategies use them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use super::Dependency;
use crate::stock::{DriverError, Fence};

/// The distributed locks of one server or cluster, by name.
#[async_trait]
pub trait Lock: Send + Sync + fmt::Debug {
    /// The server that holds the locks.
    fn dependency(&self) -> Dependency;

    /// The variable that names the server.
    fn variable(&self) -> &'static str;

    /// Waits for the lock with this name, at most for `wait`.
    ///
    /// # Errors
    /// [`LockError`]; no lock is held then.
    ///
    /// # Cancel safety
    /// May be dropped at any await: no lock stays behind.
    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn HeldLock>, LockError>;

    /// Makes one cheap round trip.
    ///
    /// # Errors
    /// A sentence that says why the server did not answer.
    async fn ping(&self) -> Result<(), String>;

    /// Releases all locks, and closes connections and sessions.
    async fn close(&self);
}

/// A lock that was acquired, and that may have been lost since.
#[async_trait]
pub trait HeldLock: Send + Sync + fmt::Debug {
    /// The fencing token of this acquisition, if these locks have tokens.
    fn fence(&self) -> Option<Fence>;

    /// Whether this process knows that the lock is lost. Looks at the clock; sends nothing.
    fn is_lost(&self) -> bool;

    /// Releases the lock.
    ///
    /// # Cancel safety
    /// May be dropped at any await: the release continues in the background.
    async fn release(self: Box<Self>);
}

/// Why a lock was not acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Other clients held it for the whole wait.
    #[error("other clients held the lock for the whole wait")]
    WaitLimit(#[source] DriverError),
    /// The lock server did not answer.
    #[error("the lock server does not answer")]
    Unavailable(#[source] DriverError),
    /// The lock server answers, but refuses to work: wrong password, wrong settings.
    #[error("the lock server refuses to work")]
    Refused(#[source] DriverError),
}
