//! Hooks through which a lock manager reports metrics.
//!
//! Without these metrics, waiting for locks is invisible: requests just become slow. `label` is the
//! value set with [`LockBuilder::label`](crate::LockBuilder::label), not the name of the lock, so
//! it has few values.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::shared::error::LostReason;

/// Receives the metrics of a lock manager. Each method must return quickly, because the lock
/// operation waits for it. If a method panics, only that metric is lost.
pub trait LockHooks: Debug + Send + Sync + 'static {
    /// An acquisition has begun. Either [`acquired`](Self::acquired) or
    /// [`not_acquired`](Self::not_acquired) follows, so the difference is the number of tasks that wait.
    fn started(&self, _label: &'static str) {}

    /// A lock was acquired after `waited`. `contended` is true if it was not free at once, in the
    /// local queue or on the server.
    fn acquired(&self, _label: &'static str, _waited: Duration, _contended: bool) {}

    /// A lock was not acquired, after `waited`.
    fn not_acquired(&self, _label: &'static str, _waited: Duration, _why: NotAcquired) {}

    /// One attempt to acquire a lock on the server has ended.
    fn attempted(&self, _label: &'static str, _outcome: AttemptOutcome) {}

    /// A request to renew locks has ended, after `took`. It is called once for the locks that the server
    /// has answered (also with the answer that one is gone), and once for the others, with the same `took`;
    /// not for zero locks.
    fn renewed(&self, _locks: usize, _took: Duration, _answered: bool) {}

    /// A lock was released after `held`, and the server did not report an earlier loss.
    ///
    /// Each acquired lock is counted exactly once, as released or as lost, even if no caller waits
    /// for the result of the release.
    fn released(&self, _label: &'static str, _held: Duration) {}

    /// A lock was lost after `held`.
    fn lost(&self, _label: &'static str, _held: Duration, _reason: LostReason) {}

    /// A guard was dropped instead of released. The release in the background is counted
    /// separately.
    fn guard_dropped(&self, _label: &'static str) {}
}

/// Why a lock was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotAcquired {
    /// The lock was not free within the wait limit.
    WaitLimit,
    /// The server could not be reached, did not answer, or refused the request.
    Unavailable,
    /// While the acquisition waited, the number of permits became smaller than its claim.
    TooFewPermits,
    /// The caller dropped the future of the acquisition.
    Abandoned,
    /// The manager was shut down.
    Shutdown,
}

impl NotAcquired {
    /// Returns a stable lower-case name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WaitLimit => "wait-limit",
            Self::Unavailable => "unavailable",
            Self::TooFewPermits => "too-few-permits",
            Self::Abandoned => "abandoned",
            Self::Shutdown => "shutdown",
        }
    }
}

/// The result of one attempt on the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// The lock was acquired.
    Held,
    /// Another client holds the lock.
    Busy,
    /// The server did not answer, or refused the request.
    Failed,
}

impl AttemptOutcome {
    /// Returns a stable lower-case name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Busy => "busy",
            Self::Failed => "failed",
        }
    }
}

/// Ignores all metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl LockHooks for NoHooks {}

/// The hooks of a manager. A panic in them must not end a task of the manager.
#[derive(Debug, Clone)]
pub(crate) struct Hooks(pub(crate) Arc<dyn LockHooks>);

impl Hooks {
    pub(crate) fn report(&self, metric: impl FnOnce(&dyn LockHooks)) {
        if catch_unwind(AssertUnwindSafe(|| metric(&*self.0))).is_err() {
            tracing::error!("a hook for lock metrics panicked; its metric is lost");
        }
    }
}
