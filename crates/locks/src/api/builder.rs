//! The settings of one acquisition.

use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::{LockGuard, ReleaseOutcome};
use crate::api::manager::LockManager;
use crate::backend::Claim;
use crate::held::acquire;
use crate::held::options::Options;
use crate::shared::error::LockError;
use crate::shared::token::Token;

/// Describes one acquisition. Created by [`LockManager::lock`], [`read`](LockManager::read),
/// [`write`](LockManager::write) and [`permits`](LockManager::permits).
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
/// // ... work; pass guard.token() to every write ...
/// guard.release().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "it does nothing before acquire, try_acquire or run"]
pub struct LockBuilder<T = Token> {
    pub(crate) manager: LockManager<T>,
    pub(crate) options: Options,
}

impl<T> LockManager<T> {
    /// Starts to describe an acquisition of the lock with this name: 1 to 1,024 bytes of any text.
    pub fn lock(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::Exclusive)
    }

    /// Starts to describe an acquisition of the read lock with this name. Other readers may hold it at
    /// the same time, but no writer.
    ///
    /// Read and write locks are granted in order of arrival, so a stream of readers does not keep a
    /// writer waiting. They exclude each other, but not the [lock](Self::lock) with the same name. Redis,
    /// ZooKeeper and the back ends without a server have them.
    pub fn read(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::READ)
    }

    /// Starts to describe an acquisition of the write lock with this name. It has one holder. With this
    /// method alone, it is a mutex that is granted in order of arrival.
    pub fn write(&self, name: &str) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::WRITE)
    }

    /// Starts to describe an acquisition of `take` of the `of` permits with this name: a semaphore. The
    /// permits are granted in order of arrival, renewed like a lock, and returned with the guard, or at
    /// the end of the lease.
    ///
    /// The latest request decides how many permits there are. If that number shrinks, holders keep
    /// theirs, and a waiter that wants more than there are now gets
    /// [`InvalidPermits`](crate::LockError::InvalidPermits). On ZooKeeper it waits until its wait limit,
    /// and those behind it wait too. Do not use a name for both permits and read-write locks: both count
    /// the same permits.
    pub fn permits(&self, name: &str, take: u32, of: u32) -> LockBuilder<T> {
        LockBuilder::new(self.clone(), name, Claim::Permits { take, of })
    }
}

impl<T> LockBuilder<T> {
    pub(crate) fn new(manager: LockManager<T>, name: &str, claim: Claim) -> Self {
        let options = Options {
            name: Arc::from(name),
            claim,
            ..manager.engine().defaults.clone()
        };
        Self { manager, options }
    }

    /// Sets how long [`acquire`](Self::acquire) may wait, in this process and on the server.
    /// Default: 5 s.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.options.wait = limit;
        self
    }

    /// Sets how long the lock lives on the server without renewal. Default: 10 s; minimum: 20 ms;
    /// maximum: 24 hours.
    ///
    /// The lock is renewed at every third of the lease, so the lease only limits how long other
    /// clients wait after a crash. ZooKeeper ignores it: its locks live as long as their session.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.set_lease(lease);
        self
    }

    /// Sets how long the lock may be held in total. Default: 24 hours, and no limit for
    /// [`campaign`](Self::campaign) and [`lead`](Self::lead). Minimum: 20 ms; maximum: 30 days.
    ///
    /// After this time the lock counts as lost, with
    /// [`LostReason::MaxHold`](crate::LostReason::MaxHold). It is released after another
    /// [safety margin](Self::safety_margin). A task that hangs then does not block other clients
    /// indefinitely.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.options.set_max_hold(limit);
        self
    }

    /// Sets how often the lock may be renewed; 0 means never. Default: no limit.
    ///
    /// After the last renewal the lock expires, with
    /// [`LostReason::MaxRenewals`](crate::LostReason::MaxRenewals).
    pub fn max_renewals(mut self, limit: u32) -> Self {
        self.options.max_renewals = Some(limit);
        self
    }

    /// Sets how long before its expiry on the server the lock counts as lost. Default: a tenth of
    /// the lease; maximum: half of it.
    ///
    /// The margin covers clocks that run at different rates, timers that fire late, and the time
    /// that running work needs to stop. A lock that is lost without an expiry, at `max_hold` or at
    /// the shutdown of the manager, is released this long after its loss.
    pub fn safety_margin(mut self, margin: Duration) -> Self {
        self.options.safety_margin = Some(margin);
        self
    }

    /// Sets the label of this lock in metrics. Use few labels: lock names are often too many.
    /// Default: `lock`.
    pub fn label(mut self, label: &'static str) -> Self {
        self.options.label = label;
        self
    }

    /// Acquires the lock, waiting up to the wait limit.
    ///
    /// # Errors
    /// - [`LockError::WaitLimit`] if the lock was not free in time.
    /// - [`LockError::Unavailable`] if the server did not answer in time.
    /// - [`LockError::Shutdown`] if the manager was shut down.
    /// - [`LockError::InvalidName`] if the name is empty or too long.
    /// - [`LockError::InvalidPermits`] if there can never be so many permits.
    /// - [`LockError::Unsupported`] if the back end has no permits.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. A lock or queue position that it had already
    /// obtained is released in the background.
    pub async fn acquire(self) -> Result<LockGuard<T>, LockError> {
        let hold = acquire::acquire(self.manager.engine(), self.options).await;
        hold.map(LockGuard::new)
    }

    /// Acquires the lock if it is free now. Returns `None` if another client holds it.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), except `WaitLimit`. The server may take up to the
    /// response limit of the back end to answer. A request that the server refuses is not repeated, unless
    /// that may help at once.
    ///
    /// # Cancel safety
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<LockGuard<T>>, LockError> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::WaitLimit { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// `body` receives a child guard for the token and for checks. If the lock is lost, `body` is
    /// dropped at its current await point.
    ///
    /// If `body` ended, its output is returned in any case. [`Ran::release`] tells whether the lock
    /// was held until then.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), and [`LockError::Lost`] if the lock was lost before
    /// `body` ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops `body` and releases the lock in the background.
    pub async fn run<B, F>(self, body: B) -> Result<Ran<F::Output>, LockError>
    where
        B: FnOnce(LockGuard<T>) -> F,
        F: Future,
    {
        self.acquire().await?.run(body).await
    }
}

impl<T> LockGuard<T> {
    /// Runs `body` with a child of this guard, and releases the lock.
    pub(crate) async fn run<B, F>(self, body: B) -> Result<Ran<F::Output>, LockError>
    where
        B: FnOnce(Self) -> F,
        F: Future,
    {
        let guard = self.quiet();
        let child = guard.reenter()?;
        let output = tokio::select! {
            biased;
            reason = guard.lost() => Err(LockError::Lost { reason }),
            output = body(child) => Ok(output),
        };
        let release = guard.release().await;
        output.map(|output| Ran { output, release })
    }
}

/// Not derived, because a clone needs no clone of a token.
impl<T> Clone for LockBuilder<T> {
    fn clone(&self) -> Self {
        Self {
            manager: self.manager.clone(),
            options: self.options.clone(),
        }
    }
}

/// The result of [`LockBuilder::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "another client may have held the lock at the same time: check `release`"]
pub struct Ran<T> {
    /// What the body returned.
    pub output: T,
    /// Whether the lock was held until the body ended. With
    /// [`AlreadyLost`](ReleaseOutcome::AlreadyLost), another client may have held the lock at the
    /// same time. If the body passed its guard on, that guard keeps the lock.
    pub release: ReleaseOutcome,
}
