//! Several locks that are held together, or not at all.

use std::cmp::Reverse;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{join_all, select_all};

use crate::api::builder::LockBuilder;
use crate::api::guard::{LockGuard, ReleaseOutcome};
use crate::api::lost::Lost;
use crate::backend::Claim;
use crate::shared::error::LockError;
use crate::shared::token::Token;

/// Describes the acquisition of several locks together.
///
/// The locks are acquired one after the other, in the order of their names. Two tasks that want the
/// same locks therefore never wait for each other in a circle, in whatever order they name them. If
/// one lock is not acquired, all are released.
///
/// The locks may belong to different managers, and may be read locks or permits. All or none of them
/// have fencing tokens. A name that occurs
/// several times is acquired once, with its largest claim. Do not use two managers for one name on
/// one server: one of them would wait for the other. Name locks with equal names on several servers of
/// one kind in the same order everywhere: here nothing else puts them in order.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use std::time::Duration; use stocklock_locks::{LockManager, MultiLock, local::LocalBackend};
/// let locks = LockManager::new(LocalBackend::new());
/// let cart = ["sku:7", "sku:42"].map(|sku| locks.lock(sku));
/// let guard = MultiLock::of(cart).wait(Duration::from_secs(2)).acquire().await?;
/// // ... work; pass guard.get("sku:7") to the writes of sku:7 ...
/// guard.release().await;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "it does nothing before acquire or try_acquire"]
pub struct MultiLock<T = Token> {
    /// In the order of acquisition, without repetitions.
    locks: Vec<LockBuilder<T>>,
    wait: Option<Duration>,
}

impl<T> MultiLock<T> {
    /// Combines locks. Their leases and limits apply to each of them, their labels to its metrics.
    pub fn of(locks: impl IntoIterator<Item = LockBuilder<T>>) -> Self {
        let mut locks: Vec<_> = locks.into_iter().collect();
        // All processes must have the same order, so it may depend on nothing else.
        locks.sort_by(|one, other| order(one).cmp(&order(other)));
        let mut kept: Vec<LockBuilder<T>> = Vec::with_capacity(locks.len());
        for lock in locks {
            if !kept.iter().any(|kept| is_same(kept, &lock)) {
                kept.push(lock);
            }
        }
        Self {
            locks: kept,
            wait: None,
        }
    }

    /// Sets how long [`acquire`](Self::acquire) may wait for all locks together. Default: the
    /// longest wait limit of the locks.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = Some(limit);
        self
    }

    /// Acquires all locks, waiting up to the wait limit. It costs the requests of each lock, one lock
    /// after the other. Locks that are already held stay held, and are renewed, while it waits.
    ///
    /// # Errors
    /// The errors of [`LockBuilder::acquire`] for the first lock that was not acquired, and
    /// [`LockError::Lost`] if a lock was lost while this waited for another one. No lock is held
    /// then: those that were acquired are released in the background.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. All locks are then released in the background.
    pub async fn acquire(self) -> Result<MultiGuard<T>, LockError> {
        let longest = || self.locks.iter().map(|lock| lock.options.wait).max();
        let wait = self.wait.or_else(longest).unwrap_or_default();
        let mut taken = Taken(Vec::with_capacity(self.locks.len()));
        let Some(first) = self.locks.first() else {
            return Ok(taken.complete());
        };
        let clock = Arc::clone(&first.manager.engine().clock);
        let started = clock.now();
        for lock in self.locks {
            let waited = clock.now().since(started);
            if waited >= wait && !wait.is_zero() {
                return Err(LockError::WaitLimit { waited });
            }
            let guard = tokio::select! {
                biased;
                reason = taken.lost() => return Err(LockError::Lost { reason }),
                guard = lock.wait(wait.saturating_sub(waited)).acquire() => guard,
            };
            match guard {
                Ok(guard) => taken.0.push(guard),
                Err(LockError::WaitLimit { .. }) => {
                    let waited = clock.now().since(started);
                    return Err(LockError::WaitLimit { waited });
                }
                Err(error) => return Err(error),
            }
        }
        for guard in &taken.0 {
            guard.check()?;
        }
        Ok(taken.complete())
    }

    /// Acquires all locks if they are free now. Returns `None` if another client holds one of them.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), except `WaitLimit`.
    ///
    /// # Cancel safety
    /// Same as [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<MultiGuard<T>>, LockError> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::WaitLimit { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The position of a lock in the common order. The largest claim of a name is first.
fn order<T>(lock: &LockBuilder<T>) -> (&str, &'static str, bool, Reverse<u32>) {
    let (is_shared, take) = match lock.options.claim {
        Claim::Exclusive => (false, 0),
        Claim::Permits { take, .. } => (true, take),
    };
    let server = lock.manager.engine().backend.properties().name;
    (&lock.options.name, server, is_shared, Reverse(take))
}

/// Returns true if these are claims of the same lock of one manager.
fn is_same<T>(one: &LockBuilder<T>, other: &LockBuilder<T>) -> bool {
    let lock_of = |lock: &LockBuilder<T>| {
        let options = &lock.options;
        (Arc::clone(&options.name), options.claim == Claim::Exclusive)
    };
    Arc::ptr_eq(one.manager.engine(), other.manager.engine()) && lock_of(one) == lock_of(other)
}

/// Completes when the first of these locks is lost. `None` without any lock.
fn first_lost<T>(guards: &[LockGuard<T>]) -> Option<Lost> {
    let losses: Vec<_> = guards.iter().map(LockGuard::lost).collect();
    let first = || select_all(losses).map(|(reason, _, _)| reason);
    (!guards.is_empty()).then(|| Lost::new(first()))
}

/// The locks acquired so far. Dropping this releases them.
struct Taken<T>(Vec<LockGuard<T>>);

impl<T> Taken<T> {
    fn complete(mut self) -> MultiGuard<T> {
        MultiGuard {
            guards: std::mem::take(&mut self.0),
        }
    }

    async fn lost(&self) -> crate::LostReason {
        match first_lost(&self.0) {
            Some(lost) => lost.await,
            None => pending().await,
        }
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        // In the reverse order: a task that waits for the first lock then finds the others free.
        let reversed = self.0.drain(..).rev();
        reversed.for_each(|guard| drop(guard.quiet()));
    }
}

/// Several locks that are held together. Created by [`MultiLock::acquire`].
///
/// If one of them is lost, the holder has lost them all: [`lost`](Self::lost) completes and
/// [`check`](Self::check) fails. The others stay held until this guard is released or dropped, so
/// that no other client works on them before the holder has stopped.
#[derive(Debug)]
#[must_use = "the locks are released when their guard is dropped"]
pub struct MultiGuard<T = Token> {
    guards: Vec<LockGuard<T>>,
}

impl<T> MultiGuard<T> {
    /// Returns the guard of each lock, in the order of acquisition. Each has its own token.
    pub fn guards(&self) -> &[LockGuard<T>] {
        &self.guards
    }

    /// Returns the guard of the lock with this name, for its token. If there are several, the first.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&LockGuard<T>> {
        self.guards.iter().find(|guard| guard.name() == name)
    }

    /// Returns how long all locks are still guaranteed to be held, or zero if one is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.guards.iter().map(LockGuard::remaining);
        remaining.min().unwrap_or(Duration::MAX)
    }

    /// Checks that all locks are still held, without asking a server.
    ///
    /// # Errors
    /// [`LockError::Lost`] if one of them is lost. This is final.
    pub fn check(&self) -> Result<(), LockError> {
        self.guards.iter().try_for_each(LockGuard::check)
    }

    /// Returns a future that completes when the first of the locks is no longer held. For each lock, the
    /// promise and the exceptions of [`LockGuard::lost`] apply. Without any lock it never completes.
    pub fn lost(&self) -> Lost {
        first_lost(&self.guards).unwrap_or_else(Lost::never)
    }

    /// Asks the servers whether all locks are still held, at the same time.
    ///
    /// # Errors
    /// [`LockError::Lost`] if one of them is lost, [`LockError::Unavailable`] if a server does not
    /// answer.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn verify(&self) -> Result<(), LockError> {
        let answers = join_all(self.guards.iter().map(LockGuard::verify)).await;
        answers.into_iter().collect()
    }

    /// Releases all locks at the same time, and reports whether all were held until now. `held_for` is
    /// the time since the last of them was acquired.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The releases continue in the background.
    pub async fn release(self) -> ReleaseOutcome {
        let outcomes = join_all(self.guards.into_iter().map(LockGuard::release)).await;
        let held_for = outcomes.iter().map(ReleaseOutcome::held_for).min();
        let held_for = held_for.unwrap_or_default();
        let mut all = ReleaseOutcome::Released { held_for };
        for outcome in outcomes {
            match outcome {
                ReleaseOutcome::AlreadyLost { reason, .. } => {
                    return ReleaseOutcome::AlreadyLost { reason, held_for };
                }
                ReleaseOutcome::Unconfirmed { .. } => {
                    all = ReleaseOutcome::Unconfirmed { held_for };
                }
                ReleaseOutcome::Released { .. } => {}
            }
        }
        all
    }
}
