//! One acquisition, described before it begins.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire;
use crate::clock::Moment;
use crate::error::LockError;
use crate::guard::{LockGuard, ReleaseOutcome};
use crate::manager::LockManager;

/// The shortest lease; below it the timers of a busy machine are too coarse.
const LEASE_MIN: Duration = Duration::from_millis(20);

/// How one lock is acquired and held; the manager's defaults at first.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) name: Arc<str>,
    pub(crate) label: &'static str,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) max_renewals: Option<u32>,
    pub(crate) safety_margin: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: Arc::from(""),
            label: "lock",
            wait: Duration::from_secs(5),
            lease: Duration::from_secs(10),
            max_hold: None,
            max_renewals: None,
            safety_margin: None,
        }
    }
}

impl Options {
    pub(crate) fn set_lease(&mut self, lease: Duration) {
        self.lease = lease.max(LEASE_MIN);
    }

    /// Until when a lock is held for certain whose request was sent at `sent`.
    pub(crate) fn valid_until(&self, sent: Moment, lease: Duration, acquired: Moment) -> Moment {
        let margin = self.safety_margin.unwrap_or(lease / 10).min(lease / 2);
        let until = sent + lease.saturating_sub(margin);
        self.hold_limit(acquired)
            .map_or(until, |limit| until.min(limit))
    }

    /// The moment at which a holder that acquired it at `acquired` has to give it up.
    pub(crate) fn hold_limit(&self, acquired: Moment) -> Option<Moment> {
        self.max_hold.map(|most| acquired + most)
    }
}

/// Describes one acquisition; from [`LockManager::lock`], does nothing before its last call.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration; use stocklock_locks::{LockManager, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// let guard = locks
///     .lock("sku:42")
///     .wait(Duration::from_secs(2))
///     .lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(60))
///     .acquire()
///     .await?;
/// // ... write, with guard.token() as a condition ...
/// guard.release().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing before acquire, try_acquire or run"]
pub struct LockBuilder {
    manager: LockManager,
    options: Options,
}

impl LockBuilder {
    pub(crate) fn new(manager: LockManager, name: &str) -> Self {
        let options = Options {
            name: Arc::from(name),
            ..manager.inner().defaults.clone()
        };
        Self { manager, options }
    }

    /// How long [`acquire`](Self::acquire) may wait, in this process and on the server; 5 s unless
    /// told.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.options.wait = limit;
        self
    }

    /// How long the lock lives on the server without renewal; 10 s unless told, at least 20 ms.
    ///
    /// It is renewed at every third of this, so it bounds only how long others wait after a crash.
    /// ZooKeeper's locks live as long as their session instead, and ignore it.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease);
        self
    }

    /// How long the lock may be held in all; without a bound unless told.
    ///
    /// Then it is lost, with [`LostReason::MaxHold`](crate::LostReason::MaxHold), and given up: a
    /// task that hangs does not keep everybody out.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.max_hold = Some(limit);
        self
    }

    /// How often the lock is renewed; without a bound unless told, 0 for never.
    ///
    /// Then it runs out, with [`LostReason::MaxRenewals`](crate::LostReason::MaxRenewals).
    pub fn max_renewals(mut self, limit: u32) -> Self {
        self.options.max_renewals = Some(limit);
        self
    }

    /// How long before the server may grant the lock to another the guard counts as lost; a tenth
    /// of the lease unless told, at most half of it.
    ///
    /// It pays for the difference in the clocks' rates, for timers that fire late, and for the time
    /// that work in progress takes to notice.
    pub fn safety_margin(mut self, margin: Duration) -> Self {
        self.options.safety_margin = Some(margin);
        self
    }

    /// The name under which metrics count this lock: one of few, where lock names are many.
    pub fn label(mut self, label: &'static str) -> Self {
        self.options.label = label;
        self
    }

    /// Acquires the lock, and waits for it up to the wait limit.
    ///
    /// # Errors
    /// [`LockError::WaitLimit`] when it was not free in time, [`LockError::Unavailable`] when the
    /// server gave no answer in time, [`LockError::Shutdown`], [`LockError::InvalidName`].
    ///
    /// # Cancel safety
    /// May be dropped at any point. What it had acquired or queued for is released in the
    /// background, whether or not the server's answer was on its way.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        acquire::acquire(&self.manager, self.options).await
    }

    /// Acquires the lock if it is free now; `None` if somebody holds it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without the wait limit: the server's answer is waited for up
    /// to the back end's own response limit.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, LockError> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::WaitLimit { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Runs `body` while it holds the lock, and releases it afterwards.
    ///
    /// `body` is given a child guard, for the token and for checks. If the lock is lost meanwhile,
    /// `body` is dropped at the await point that it stands at.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] when the lock was lost before `body`
    /// came to its end, or the server says at the release that it had been: then all of `body` was
    /// done, perhaps beside another holder. Where the server does not answer the release, the lock
    /// was held as long as this process could know, and that is no error; nor is a loss looked for
    /// while a guard that `body` has passed on keeps the lock.
    ///
    /// # Cancel safety
    /// Dropping it drops `body` and releases the lock in the background.
    pub async fn run<B, F>(self, body: B) -> Result<F::Output, LockError>
    where
        B: FnOnce(LockGuard) -> F,
        F: Future,
    {
        let guard = self.acquire().await?;
        let child = guard.reenter()?;
        let output = tokio::select! {
            biased;
            reason = guard.lost() => Err(LockError::Lost { reason }),
            output = body(child) => Ok(output),
        };
        // `body` came to its end, but perhaps beside another holder.
        match guard.release().await {
            ReleaseOutcome::AlreadyLost { reason, .. } => Err(LockError::Lost { reason }),
            ReleaseOutcome::Released { .. } | ReleaseOutcome::Unconfirmed { .. } => output,
        }
    }
}
