//! What a holder has in its hands.

use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::oneshot;

use crate::backend::Renewed;
use crate::clock::Moment;
use crate::error::{BackendError, LockError, LostReason};
use crate::hold::Hold;
use crate::release::{Held, Released};
use crate::token::Token;

/// How many guards may share one lock.
const GUARDS_MAX: usize = 1_000;

/// A held lock; release it with [`release`](Self::release).
///
/// Dropping it releases too, in the background: it never blocks and needs no runtime, but nobody
/// learns how it went, and a metric and a warning tell of it.
///
/// That a guard exists does not prove that the lock is held: the process may have been paused past
/// the lease. [`check`](Self::check) before a step of work, [`lost`](Self::lost) beside it, and the
/// [token](Self::token) in the write itself, which alone is certain.
#[must_use = "the lock is released when its guard is dropped"]
pub struct LockGuard {
    /// `None` once it was released.
    hold: Option<Arc<Hold>>,
}

/// What a guard knows of its lock without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockState {
    /// Held, and the last renewal succeeded.
    Held,
    /// Held until [`LockGuard::valid_until`], but the server gives no answer.
    Suspect,
    /// Held no more; this is final.
    Lost(LostReason),
}

/// What a release came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The lock was held to the end, and is free; or another guard of the same lock keeps it.
    Released {
        /// How long it was held.
        held_for: Duration,
    },
    /// The lock was held to the end, but the server did not confirm that it is free now. The
    /// release is repeated in the background until the lease has run out.
    Unconfirmed {
        /// How long it was held.
        held_for: Duration,
    },
    /// The lock had been lost before: what was done under it may have overlapped with another.
    AlreadyLost {
        /// Why.
        reason: LostReason,
        /// How long ago it was acquired.
        held_for: Duration,
    },
}

impl LockGuard {
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self { hold: Some(hold) }
    }

    fn hold(&self) -> &Arc<Hold> {
        self.hold
            .as_ref()
            .expect("only release, which takes the guard, takes the hold")
    }

    /// The lock's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold().name()
    }

    /// The fencing token; the same for all guards of one acquisition.
    #[must_use]
    pub fn token(&self) -> Token {
        self.hold().grant.token
    }

    /// What minted the token: the kind of lock and the random id of its cluster. Tokens of
    /// different sources do not compare.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.hold().grant.source
    }

    /// Until when the lock is held for certain, on the manager's clock; renewals move it.
    #[must_use]
    pub fn valid_until(&self) -> Moment {
        self.hold().valid_until()
    }

    /// How long the lock is still held for certain; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.hold().ended().is_some() {
            return Duration::ZERO;
        }
        self.valid_until().since(self.hold().inner.clock.now())
    }

    /// What is known of the lock without asking the server.
    #[must_use]
    pub fn state(&self) -> LockState {
        self.hold().lock_state()
    }

    /// Whether the lock is still held, by the local clock and what the server has said so far.
    ///
    /// # Errors
    /// [`LockError::Lost`]; this is final.
    pub fn check(&self) -> Result<(), LockError> {
        match self.hold().ended() {
            None => Ok(()),
            Some(reason) => Err(LockError::Lost { reason }),
        }
    }

    /// Completes when the lock is held no more, before the server may grant it to another.
    ///
    /// It completes with [`LostReason::Released`] after an orderly release, so that nothing waits
    /// for ever.
    pub fn lost(&self) -> Lost {
        let mut ended = self.hold().subscribe();
        let future = async move {
            let reason = ended.wait_for(Option::is_some).await.ok();
            reason
                .and_then(|reason| *reason)
                .unwrap_or(LostReason::Released)
        };
        Lost(future.boxed().shared())
    }

    /// Asks the server whether the lock is this guard's.
    ///
    /// # Errors
    /// [`LockError::Lost`] if it is not, [`LockError::Unavailable`] if there is no answer.
    ///
    /// # Cancel safety
    /// May be dropped at any point.
    pub async fn verify(&self) -> Result<(), LockError> {
        self.check()?;
        let hold = self.hold();
        let answer = hold.inner.backend.verify(hold.name(), hold.nonce).await;
        if !answer.map_err(|error| hold.unavailable("verify", error))? {
            let reason = hold.lose(LostReason::Stolen);
            return Err(LockError::Lost { reason });
        }
        self.check()
    }

    /// Gives the lock a lease of at least this length from now on, beside the regular renewals and
    /// within `max_hold`.
    ///
    /// ZooKeeper's locks live as long as their session and ignore the length.
    ///
    /// # Errors
    /// [`LockError::Lost`] if it is held no more, [`LockError::Unavailable`] if it is not known
    /// whether it was extended; then it is as valid as it was.
    ///
    /// # Cancel safety
    /// May be dropped at any point; the server may have extended the lease.
    pub async fn extend(&self, lease: Duration) -> Result<(), LockError> {
        self.check()?;
        let hold = self.hold();
        let sent = hold.inner.clock.now();
        let renewal = [hold.renewal(Some(lease))];
        let renewed = hold.inner.backend.renew(&renewal).await;
        let renewed = renewed.map_err(|error| hold.unavailable("extend", error))?[0];
        if let Some(times) = hold.renewed(sent, renewed, false) {
            hold.inner.watchdog.reschedule(hold.id, times);
        }
        if renewed == Renewed::Unknown {
            let cause = "the server did not say whether it did";
            return Err(hold.unavailable("extend", BackendError::transient(cause)));
        }
        self.check()
    }

    /// Another guard of the same lock, with the same token; the lock goes when the last one does.
    ///
    /// This is how a holder enters again: by passing a guard on, not by being the same thread.
    ///
    /// # Errors
    /// [`LockError::Lost`]; [`LockError::ReentryLimit`] at a thousand guards.
    pub fn reenter(&self) -> Result<Self, LockError> {
        self.check()?;
        let hold = self.hold();
        hold.enter(GUARDS_MAX)
            .map_err(|limit| LockError::ReentryLimit { limit })?;
        Ok(Self::new(Arc::clone(hold)))
    }

    /// Gives the lock up, and tells whether it was held until now.
    ///
    /// # Cancel safety
    /// May be dropped at any point: the release goes on in the background.
    pub async fn release(mut self) -> ReleaseOutcome {
        let hold = self.hold.take().expect("release takes the guard");
        let lost = hold.ended();
        let is_last = hold.leave();
        let held_for = hold.held_for();
        if let Some(reason) = lost {
            return ReleaseOutcome::AlreadyLost { reason, held_for };
        }
        if !is_last {
            return ReleaseOutcome::Released { held_for };
        }
        let (done, is_done) = oneshot::channel();
        if let Err(reason) = give_up(&hold, Some(done)) {
            return ReleaseOutcome::AlreadyLost { reason, held_for };
        }
        match is_done.await {
            Ok(Released::Yes) => ReleaseOutcome::Released { held_for },
            Ok(Released::WasNotHeld) => {
                let reason = LostReason::Stolen;
                ReleaseOutcome::AlreadyLost { reason, held_for }
            }
            Ok(Released::NotYet) | Err(_) => ReleaseOutcome::Unconfirmed { held_for },
        }
    }

    /// Gives the lock up in the background, as nobody's fault.
    pub(crate) fn abandon(mut self) {
        if let Some(hold) = self.hold.take()
            && hold.leave()
        {
            // Lost in between is as good as given up.
            let _ = give_up(&hold, None);
        }
    }
}

/// Ends the hold and hands it to the release task; `Err` if it was lost first.
fn give_up(hold: &Arc<Hold>, done: Option<oneshot::Sender<Released>>) -> Result<(), LostReason> {
    let turn = hold.end(LostReason::Released)?;
    let to_tell = Held {
        label: hold.label(),
        held_for: hold.held_for(),
    };
    hold.release_in_background(turn, done, Some(to_tell));
    Ok(())
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        if hold.leave() && give_up(&hold, None).is_ok() {
            hold.inner.hooks.guard_dropped(hold.label());
            tracing::warn!(
                lock = %hold.name(), token = %hold.grant.token,
                "a guard was dropped, not released; its lock is released in the background",
            );
        }
    }
}

impl Debug for LockGuard {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let hold = self.hold();
        formatter
            .debug_struct("LockGuard")
            .field("name", hold.name())
            .field("token", &hold.grant.token)
            .field("source", &hold.grant.source)
            .finish_non_exhaustive()
    }
}

/// Completes when a lock is held no more, and says why; from [`LockGuard::lost`].
///
/// Each clone completes, also when it is first polled afterwards, and any may be dropped.
#[derive(Clone)]
#[must_use = "futures do nothing unless polled"]
pub struct Lost(Shared<BoxFuture<'static, LostReason>>);

impl Future for Lost {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LostReason> {
        self.0.poll_unpin(context)
    }
}

impl Debug for Lost {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Lost").field(&self.0.peek()).finish()
    }
}
