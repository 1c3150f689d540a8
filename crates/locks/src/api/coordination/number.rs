//! A number that several processes share.

use std::time::Duration;

use super::Register;
use crate::backend::Change;
use crate::shared::error::LockError;

/// A 64-bit number that several processes share: a counter, or a value that all of them follow. Created
/// by [`LockManager::number`](crate::LockManager::number). It is zero at first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use stocklock_locks::{LockManager, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// let imports = locks.number("imports");
/// assert_eq!(imports.add(1).await?, 1);
/// assert_eq!(imports.add(1).await?, 2);
/// imports.remove().await?;
/// # Ok(()) }
/// ```
///
/// **Exactly once.** A change whose answer is lost is repeated for twice the response limit of the back
/// end, and the server recognises the repetition. On Redis each change leaves a key for two minutes, which
/// contains its answer. On ZooKeeper the node of the number contains the last 32 changes; if more than
/// that followed an unanswered one, or the number was removed, the call returns `Unavailable`.
///
/// **Loss.** A number is as durable as the data of its server. If Redis loses its data, the number is zero
/// again. Do not count money or stock with it: write those to the database that has the other data.
///
/// # Errors
/// All methods return
/// - [`LockError::Unavailable`] if the server did not answer in time. A change may then have been made, or
///   be made within two minutes. Also if a sum does not fit into 64 bits.
/// - [`LockError::Unsupported`] if the back end has no numbers.
/// - [`LockError::InvalidName`] if the name is empty or too long.
/// - [`LockError::Shutdown`] if the manager was shut down.
///
/// # Cancel safety
/// A future that changes the number may be dropped; the change may be made nevertheless. The other
/// futures have no effect.
#[derive(Debug, Clone)]
pub struct Number(Register);

#[expect(
    clippy::missing_errors_doc,
    reason = "the head of the type lists the errors"
)]
impl Number {
    pub(super) fn new(register: Register) -> Self {
        Self(register)
    }

    /// Sets how long the number stays on the server after a change by this process. Default: until it is
    /// [removed](Self::remove). ZooKeeper ignores it.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.0.keep = Some(time);
        self
    }

    /// Returns the number. All changes that were answered before are in it.
    pub async fn get(&self) -> Result<i64, LockError> {
        self.0.get().await
    }

    /// Adds to the number, and returns the sum. No other call returns the same sum of positive numbers,
    /// unless the number was set or removed.
    pub async fn add(&self, by: i64) -> Result<i64, LockError> {
        self.0
            .change(Change::Add(by))
            .await
            .map(|changed| changed.value)
    }

    /// Replaces the number.
    pub async fn set(&self, to: i64) -> Result<(), LockError> {
        self.0.change(Change::Set(to)).await.map(drop)
    }

    /// Replaces the number if it is `expected`. Returns whether it was.
    pub async fn compare_exchange(&self, expected: i64, to: i64) -> Result<bool, LockError> {
        let exchange = Change::Exchange { expected, to };
        self.0
            .change(exchange)
            .await
            .map(|changed| changed.is_changed)
    }

    /// Waits until `is_wanted` returns true for the number, and returns it. Returns `None` if that did not
    /// happen within `limit`.
    ///
    /// The number may change several times between two calls of `is_wanted`.
    pub async fn wait_for(
        &self,
        limit: Duration,
        is_wanted: impl Fn(i64) -> bool,
    ) -> Result<Option<i64>, LockError> {
        self.0.wait_for(limit, is_wanted).await
    }

    /// Removes the number from the server, so it is zero. Call it when no process changes the number any
    /// more: on ZooKeeper, the removal also forgets which changes were made, so the first change of a number
    /// may count again if its answer is lost.
    pub async fn remove(&self) -> Result<(), LockError> {
        let remove = Change::Remove { only: None };
        self.0.change(remove).await.map(drop)
    }
}
