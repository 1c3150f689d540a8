//! The guard of a held lock.

use std::fmt::{self, Debug, Formatter};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot::{self, error::TryRecvError};

use crate::api::lost::Lost;
use crate::backend::{Claim, Fence, Renewed};
use crate::held::hold::{Hold, LockState, RenewalKind};
use crate::shared::clock::Moment;
use crate::shared::error::{BackendError, LockError, LostReason};
use crate::shared::token::Token;

/// The maximum number of guards that share one lock.
const GUARDS_MAX: usize = 1_000;

/// A held lock. Release it with [`release`](Self::release).
///
/// Dropping a guard also releases the lock, in the background. The drop does not block and needs no
/// runtime, but the caller does not learn the result. It is logged as a warning and reported to
/// [`LockHooks`](crate::metrics::LockHooks).
///
/// The existence of a guard does not prove that the lock is held, because the process may have been
/// paused for longer than the lease. Call [`check`](Self::check) before a step of work, watch
/// [`lost`](Self::lost) during it, and pass the [token](Self::token) to every write. Only a
/// check in the write itself protects the data in every case.
///
/// `LockGuard<()>` has no token, because the lock server issues none: see
/// [`RedLockBackend`](crate::redis::redlock::RedLockBackend).
#[must_use = "the lock is released when its guard is dropped"]
pub struct LockGuard<T = Token> {
    /// `None` after the release.
    hold: Option<Arc<Hold>>,
    /// Its drop is no defect of the user's code, so it is not reported.
    is_quiet: bool,
    token: PhantomData<fn() -> T>,
}

/// The result of a release. These are all results, so that a caller can handle each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The lock was held until the release and is free now, or another guard of it still exists.
    Released {
        /// How long the lock was held.
        held_for: Duration,
    },
    /// The lock was held until the release, but the server did not confirm the release yet. It is
    /// repeated in the background until the server has executed it, for up to two leases.
    Unconfirmed {
        /// How long the lock was held.
        held_for: Duration,
    },
    /// The lock was lost before the release. Another client may have held it at the same time.
    AlreadyLost {
        /// Why the lock was lost.
        reason: LostReason,
        /// The time since the acquisition.
        held_for: Duration,
    },
}

impl ReleaseOutcome {
    /// Returns how long the lock was held, or the time since its acquisition if it was lost.
    #[must_use]
    pub const fn held_for(&self) -> Duration {
        match self {
            Self::Released { held_for }
            | Self::Unconfirmed { held_for }
            | Self::AlreadyLost { held_for, .. } => *held_for,
        }
    }
}

impl LockGuard {
    /// Returns the fencing token. All guards of one acquisition have the same token.
    #[must_use]
    pub fn token(&self) -> Token {
        self.fence().token
    }

    /// Returns what issued the token: the kind of server and a random id of it. Tokens of different
    /// sources cannot be compared.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.fence().source
    }

    fn fence(&self) -> &Fence {
        let fence = self.hold().grant.fence.as_ref();
        fence.expect("the back end says in its type that it issues tokens")
    }
}

impl<T> LockGuard<T> {
    pub(crate) const fn new(hold: Arc<Hold>) -> Self {
        Self {
            hold: Some(hold),
            is_quiet: false,
            token: PhantomData,
        }
    }

    /// The guard of a future that runs work of the user. The user may drop that future.
    pub(crate) const fn quiet(mut self) -> Self {
        self.is_quiet = true;
        self
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        self.hold
            .as_ref()
            .expect("only release, which consumes the guard, takes the hold")
    }

    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold().name()
    }

    /// Returns the latest time at which the lock is guaranteed to be held, on the manager's clock.
    /// Renewals move it forward.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.hold().valid_until()
    }

    /// Returns how long the lock is still guaranteed to be held, or zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.hold().ended().is_some() {
            return Duration::ZERO;
        }
        self.valid_until().since(self.hold().engine.clock.now())
    }

    /// Returns the state of the lock, without asking the server.
    #[must_use]
    pub fn state(&self) -> LockState {
        self.hold().lock_state()
    }

    /// Checks that the lock is still held, by the local clock and the server's answers so far.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is no longer held. This is final.
    pub fn check(&self) -> Result<(), LockError> {
        match self.hold().ended() {
            None => Ok(()),
            Some(reason) => Err(LockError::Lost { reason }),
        }
    }

    /// Returns a future that completes when the lock is no longer held.
    ///
    /// It completes before the server can grant the lock to another client, as long as the server keeps
    /// the lock for its lease. If the server loses its data, or its clock jumps, or the lock is taken away
    /// with [`revoke`](crate::LockBuilder::revoke), it completes later: at the next renewal, after a third of
    /// the lease.
    ///
    /// After a normal release it completes with [`LostReason::Released`].
    pub fn lost(&self) -> Lost {
        let mut ended = self.hold().subscribe();
        let clock = Arc::clone(&self.hold().engine.clock);
        // This future must not keep the manager alive.
        let hold = Arc::downgrade(self.hold());
        let future = async move {
            // The watchdog normally reports the loss. This timer does not depend on it.
            while let Some(deadline) = hold.upgrade().map(|hold| hold.valid_until()) {
                tokio::select! {
                    biased;
                    _ = ended.wait_for(Option::is_some) => break,
                    () = clock.sleep_until(deadline) => {}
                }
                if hold.upgrade().is_none_or(|hold| hold.ended().is_some()) {
                    break;
                }
            }
            let reason = *ended.borrow();
            reason.unwrap_or(LostReason::Released)
        };
        Lost::new(future)
    }

    /// Asks the server whether this guard still holds the lock.
    ///
    /// # Errors
    /// [`LockError::Lost`] if it does not, [`LockError::Unavailable`] if the server does not
    /// answer.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point.
    pub async fn verify(&self) -> Result<(), LockError> {
        self.check()?;
        let hold = self.hold();
        let verify = hold.engine.backend.verify(hold.name(), hold.request.nonce);
        self.ask_for_loss("verify", verify).await
    }

    /// Renews the lock now, with a lease of at least this length; if it is below 20 ms or above 24 hours,
    /// that limit counts instead. `max_hold` still applies, and the regular renewals continue.
    ///
    /// ZooKeeper ignores the length, because its locks live as long as their session.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is no longer held. [`LockError::Unavailable`] if it is
    /// unknown whether the lock was renewed; its old deadline then still applies.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The server may have renewed the lease nevertheless.
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        self.check()?;
        let hold = self.hold();
        let sent = hold.engine.clock.now();
        let renewal = [hold.renewal(Some(lease))];
        let renew = hold.engine.backend.renew(&renewal);
        let renewed = self.ask("extend", renew).await?[0];
        let next = hold.apply_renewal(sent, renewed, RenewalKind::Extend);
        hold.engine.watchdog.reschedule(hold.id, next);
        if renewed == Renewed::Unknown {
            let cause = "the server did not confirm the renewal";
            return Err(hold.unavailable("extend", BackendError::transient(cause)));
        }
        self.check()
    }

    /// Turns a [write lock](crate::LockManager::write) into a read lock, with the same token. Readers that
    /// wait then acquire it. A read lock stays what it is.
    ///
    /// # Errors
    /// [`LockError::Unsupported`] if this is no read or write lock, [`LockError::Lost`] if it is no
    /// longer held. [`LockError::Unavailable`] if the server does not answer: readers may have the lock
    /// already, so write no more, and call it again.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The server may have executed the request nevertheless.
    pub async fn downgrade(&self) -> Result<(), LockError> {
        self.check()?;
        let hold = self.hold();
        let backend = &hold.engine.backend;
        let is_read_write = matches!(hold.request.claim, Claim::READ | Claim::WRITE);
        let Some(permits) = backend.numbers().filter(|_| is_read_write) else {
            let server = backend.properties().name;
            return Err(LockError::Unsupported { server });
        };
        let reduce = permits.reduce(hold.name(), hold.request.nonce, 1);
        self.ask_for_loss("downgrade", reduce).await
    }

    /// Asks why the lock is lost, if it is.
    async fn ask_for_loss(
        &self,
        operation: &str,
        request: impl Future<Output = Result<Option<LostReason>, BackendError>>,
    ) -> Result<(), LockError> {
        if let Some(reason) = self.ask(operation, request).await? {
            self.hold().lose(reason);
        }
        self.check()
    }

    /// Sends a request in the manager's runtime, unless the lock is lost first.
    pub(crate) async fn ask<A>(
        &self,
        operation: &str,
        request: impl Future<Output = Result<A, BackendError>>,
    ) -> Result<A, LockError> {
        let hold = self.hold();
        let mut ended = hold.subscribe();
        let answer = hold.engine.jobs.inside(async {
            tokio::select! {
                biased;
                _ = ended.wait_for(Option::is_some) => None,
                answer = request => Some(answer),
            }
        });
        let Some(answer) = answer.await else {
            let reason = hold.ended().unwrap_or(LostReason::Released);
            return Err(LockError::Lost { reason });
        };
        answer.map_err(|error| hold.unavailable(operation, error))
    }

    /// Creates another guard of the same lock, with the same token. The lock is released with its
    /// last guard.
    ///
    /// Reentry is explicit: a holder passes on a guard. It does not depend on the thread or task.
    ///
    /// # Errors
    /// [`LockError::Lost`] if the lock is no longer held, [`LockError::ReentryLimit`] if it has
    /// 1,000 guards.
    pub fn reenter(&self) -> Result<Self, LockError> {
        self.check()?;
        let hold = self.hold();
        hold.add_guard(GUARDS_MAX)
            .map_err(|limit| LockError::ReentryLimit { limit })?;
        Ok(Self::new(Arc::clone(hold)))
    }

    /// Releases the lock, and reports whether it was held until now.
    ///
    /// # Cancel safety
    /// The future may be dropped at any point. The release continues in the background.
    pub async fn release(mut self) -> ReleaseOutcome {
        let hold = self.hold.take().expect("release takes the guard");
        let is_last = hold.remove_guard();
        let held_for = hold.held_for();
        match is_last {
            Err(reason) => return ReleaseOutcome::AlreadyLost { reason, held_for },
            Ok(false) => return ReleaseOutcome::Released { held_for },
            Ok(true) => {}
        }
        let mut job = match hold.end_release() {
            Ok(job) => job,
            Err(reason) => return ReleaseOutcome::AlreadyLost { reason, held_for },
        };
        let (done, mut is_done) = oneshot::channel();
        job.done = Some(done);
        let mut release = hold.engine.run_release(job);
        // Wait for `is_done` only after the job has left this future. The job's answer would otherwise
        // wake the task that runs it, and Tokio would hand that task to another thread.
        let answer = poll_fn(|context| {
            if release.poll_unpin(context).is_ready() {
                return is_done.poll_unpin(context).map(Result::ok);
            }
            match is_done.try_recv() {
                Ok(answer) => Poll::Ready(Some(answer)),
                Err(TryRecvError::Empty) => Poll::Pending,
                Err(TryRecvError::Closed) => Poll::Ready(None),
            }
        });
        match answer.await.flatten() {
            Some(Ok(())) => ReleaseOutcome::Released { held_for },
            Some(Err(reason)) => ReleaseOutcome::AlreadyLost { reason, held_for },
            None => ReleaseOutcome::Unconfirmed { held_for },
        }
    }
}

impl<T> Drop for LockGuard<T> {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        if hold.abandon() && !self.is_quiet {
            let hooks = &hold.engine.hooks;
            hooks.report(|hooks| hooks.guard_dropped(hold.label()));
            tracing::warn!(
                lock = %hold.name(), token = hold.token(),
                "a lock guard was dropped without release(); its lock is released in the background",
            );
        }
    }
}

impl<T> Debug for LockGuard<T> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let hold = self.hold();
        formatter
            .debug_struct("LockGuard")
            .field("name", hold.name())
            .field("fence", &hold.grant.fence)
            .finish_non_exhaustive()
    }
}
