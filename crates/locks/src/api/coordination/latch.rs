//! A latch: it opens once, after a number of arrivals.

use std::time::Duration;

use super::Number;
use crate::api::manager::LockManager;
use crate::shared::error::LockError;

/// How long a latch stays on the server after the last arrival.
const KEEP: Duration = Duration::from_hours(1);

/// Opens when `count` participants have arrived, and stays open. Created by
/// [`LockManager::latch`](crate::LockManager::latch).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration; use stocklock_locks::{LockManager, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// // Each of two workers, when its part is done. The run's number makes the name unique.
/// locks.latch("import-2026-11-23", 2).arrive().await?;
/// # locks.latch("import-2026-11-23", 2).arrive().await?;
/// // A process that needs both parts.
/// let imported = locks.latch("import-2026-11-23", 2);
/// imported.wait(Duration::from_secs(60)).await?;
/// imported.remove().await?;
/// # Ok(()) }
/// ```
///
/// All participants give the same count, so no process has to create the latch first. With a count of
/// one, it is a gate that one process opens for all others.
///
/// - **Dead participants.** An arrival stays when its process dies. A process that dies before it arrives
///   leaves the latch closed, so each wait has a limit. A process that starts again must know whether it
///   has arrived.
/// - **Lost answers.** An arrival whose answer is lost counts once, like a change of a
///   [`Number`].
/// - **Expiry.** A latch opens once: use another name for the next run. It is removed an hour after the
///   last arrival; on ZooKeeper only by [`remove`](Self::remove).
///
/// # Errors
/// All methods return the errors of a [`Number`].
///
/// # Cancel safety
/// The future of `arrive` may be dropped; the arrival may count nevertheless. The other futures have no
/// effect before they complete, except `remove`.
#[derive(Debug, Clone)]
pub struct Latch {
    arrivals: Number,
    count: u32,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "the head of the type lists the errors"
)]
impl Latch {
    pub(super) fn new(manager: &LockManager, name: &str, count: u32) -> Self {
        Self {
            arrivals: Number::new(manager, "latch", name, Some(KEEP)),
            count,
        }
    }

    /// Sets how long the latch stays on the server after an arrival of this process. Default: an hour.
    /// ZooKeeper ignores it.
    #[must_use]
    pub fn expires_after(mut self, time: Duration) -> Self {
        self.arrivals.keep = Some(time);
        self
    }

    /// Counts an arrival, without waiting for others. Returns how many are still missing.
    pub async fn arrive(&self) -> Result<u32, LockError> {
        Ok(self.missing_of(self.arrivals.add(1).await?))
    }

    /// Returns how many arrivals are missing. The latch is open at zero.
    pub async fn missing(&self) -> Result<u32, LockError> {
        Ok(self.missing_of(self.arrivals.get().await?))
    }

    /// Waits until the latch is open.
    ///
    /// # Errors
    /// [`LockError::Incomplete`] if it was not open within `limit`, and those of [`Latch`].
    pub async fn wait(&self, limit: Duration) -> Result<(), LockError> {
        let is_open = |arrived| self.missing_of(arrived) == 0;
        match self.arrivals.wait_for(limit, is_open).await? {
            Some(_) => Ok(()),
            None => Err(LockError::Incomplete { limit }),
        }
    }

    /// Removes the latch from the server: it is closed again. Call it when all participants have arrived,
    /// and no process waits any more.
    pub async fn remove(&self) -> Result<(), LockError> {
        self.arrivals.remove().await
    }

    fn missing_of(&self, arrived: i64) -> u32 {
        let missing = i64::from(self.count).saturating_sub(arrived);
        u32::try_from(missing.max(0)).unwrap_or(u32::MAX)
    }
}
