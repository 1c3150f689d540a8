//! Acquiring: the local line, then the server, in a task of its own.
//!
//! The caller's future only waits for that task. When it is dropped the task learns of it at once,
//! and whatever the server may know of the acquisition by then is released in the background.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::backend::{Attempt, Contender, Grant, Request};
use crate::builder::Options;
use crate::clock::Moment;
use crate::error::{BackendError, LockError};
use crate::guard::LockGuard;
use crate::hold::Hold;
use crate::manager::{Inner, LockManager};
use crate::metrics::{AttemptOutcome, NotAcquired};
use crate::nonce::Nonce;
use crate::queue::{Entered, Turn};
use crate::release::{ReleaseJob, Released};
use crate::retry::Backoff;

/// The longest name in bytes; a path element of ZooKeeper triples it at worst.
const NAME_MAX: usize = 1_024;

/// How long past its wait limit an acquisition may tidy up on the server.
const TIDY: Duration = Duration::from_millis(50);

/// Acquires a lock in a task of its own.
pub(crate) async fn acquire(
    manager: &LockManager,
    options: Options,
) -> Result<LockGuard, LockError> {
    if !(1..=NAME_MAX).contains(&options.name.len()) {
        return Err(LockError::InvalidName { limit: NAME_MAX });
    }
    let inner = Arc::clone(manager.inner());
    let abandoned = inner.closed.child_token();
    let (answer, outcome) = oneshot::channel();
    let acquisition = Acquisition {
        started: inner.clock.now(),
        inner: Arc::clone(&inner),
        options,
        abandoned: abandoned.clone(),
        contended: false,
    };
    let task = async move {
        if let Err(Ok(guard)) = answer.send(acquisition.run().await) {
            guard.abandon();
        }
    };
    inner.runtime.spawn(inner.acquisitions.track_future(task));
    let _abandoned = abandoned.drop_guard();
    Outcome(outcome).receive().await
}

/// Where the task's answer arrives. One that nobody takes any more is given back.
struct Outcome(oneshot::Receiver<Result<LockGuard, LockError>>);

impl Outcome {
    async fn receive(mut self) -> Result<LockGuard, LockError> {
        // The task only disappears with its runtime.
        (&mut self.0).await.unwrap_or(Err(LockError::Shutdown))
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        self.0.close();
        if let Ok(Ok(guard)) = self.0.try_recv() {
            guard.abandon();
        }
    }
}

/// One acquisition while it lasts.
struct Acquisition {
    inner: Arc<Inner>,
    options: Options,
    started: Moment,
    /// Nobody waits for it any more, or the manager was shut down.
    abandoned: CancellationToken,
    contended: bool,
}

/// Why an acquisition ends without a lock.
enum End {
    /// The wait limit, while others held the lock.
    Busy,
    /// The wait limit, while the server gave no answer; or a failure that stays.
    Unavailable(BackendError),
    /// Nobody waits for it any more, or the manager was shut down.
    Abandoned,
}

impl Acquisition {
    async fn run(mut self) -> Result<LockGuard, LockError> {
        let end = match self.turn().await {
            Ok(turn) => match self.remote(turn).await {
                Ok(guard) => return Ok(guard),
                Err(end) => end,
            },
            Err(end) => end,
        };
        let waited = self.waited();
        let (error, why) = match end {
            End::Busy => (LockError::WaitLimit { waited }, NotAcquired::WaitLimit),
            End::Unavailable(error) => {
                let asked = format!("acquire {:?}", self.options.name);
                let error = error.asked(self.inner.backend.name(), asked);
                (LockError::Unavailable(error), NotAcquired::Unavailable)
            }
            End::Abandoned if self.inner.closed.is_cancelled() => {
                (LockError::Shutdown, NotAcquired::Shutdown)
            }
            End::Abandoned => (LockError::Shutdown, NotAcquired::Abandoned),
        };
        self.inner
            .hooks
            .not_acquired(self.options.label, waited, why);
        Err(error)
    }

    fn waited(&self) -> Duration {
        self.inner.clock.now().since(self.started)
    }

    /// When it stops waiting for others.
    fn wait_limit(&self) -> Moment {
        self.started + self.options.wait
    }

    /// When it stops waiting for the server's answer. Who does not wait for others still has to
    /// hear the server once.
    fn answer_limit(&self) -> Moment {
        if self.options.wait.is_zero() {
            self.started + self.inner.backend.response_limit()
        } else {
            self.wait_limit()
        }
    }

    /// Whether the time went by waiting for others, so that what was sent at `sent` could not be
    /// answered within the limit even by a server that is well; which it is not where who was first
    /// in line before got no answer either.
    fn asked_too_late(&self, sent: Moment) -> bool {
        let unanswered = self.inner.clock.now().since(sent);
        self.contended
            && unanswered < self.inner.backend.response_limit()
            && !self.inner.queue.is_troubled(&self.options.name)
    }

    /// Waits in the line of this process.
    async fn turn(&mut self) -> Result<Turn, End> {
        if self.abandoned.is_cancelled() {
            return Err(End::Abandoned);
        }
        let mut place = match self.inner.queue.enter(&self.options.name) {
            Entered::Turn(turn) => return Ok(turn),
            Entered::Place(place) => place,
        };
        self.contended = true;
        tokio::select! {
            turn = place.turn() => Ok(turn),
            () = self.abandoned.cancelled() => Err(End::Abandoned),
            () = self.inner.clock.sleep_until(self.wait_limit()) => {
                // Who is before us may be waiting for a dead server, not for the lock.
                if self.inner.queue.is_troubled(&self.options.name) {
                    let source = "the server gave no answer to who was first in line";
                    Err(End::Unavailable(BackendError::transient(source)))
                } else {
                    Err(End::Busy)
                }
            }
        }
    }

    /// Asks the server until it grants the lock or the wait limit is over.
    async fn remote(&mut self, turn: Turn) -> Result<LockGuard, End> {
        let nonce = Nonce::random();
        let mut contender = self.inner.backend.contender(Request {
            name: Arc::clone(&self.options.name),
            nonce,
            lease: self.options.lease,
        });
        let end = match self.contend(contender.as_mut(), &turn).await {
            Ok((grant, sent)) => match self.hold(nonce, grant, sent, turn) {
                Ok(guard) => return Ok(guard),
                Err(turn) => {
                    self.give_back(nonce, turn, None);
                    let source = "the lock was granted so late that its lease is nearly over";
                    return Err(End::Unavailable(BackendError::transient(source)));
                }
            },
            Err(end) => end,
        };
        if contender.may_have_left_something() {
            self.leave(nonce, turn, &end).await;
        }
        Err(end)
    }

    /// Gives up a place in the server's queue. Who was told that the lock is busy finds no trace of
    /// itself there when it asks again, if the server answers as quickly as it has so far.
    async fn leave(&self, nonce: Nonce, turn: Turn, end: &End) {
        if !matches!(end, End::Busy) {
            return self.give_back(nonce, turn, None);
        }
        let (done, is_done) = oneshot::channel();
        self.give_back(nonce, turn, Some(done));
        let now = self.inner.clock.now();
        tokio::select! {
            _ = is_done => {}
            () = self.inner.clock.sleep_until(now + TIDY) => {}
        }
    }

    async fn contend(
        &mut self,
        contender: &mut dyn Contender,
        turn: &Turn,
    ) -> Result<(Grant, Moment), End> {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let sent = self.inner.clock.now();
            let answer = tokio::select! {
                biased;
                () = self.abandoned.cancelled() => return Err(End::Abandoned),
                answer = contender.attempt() => answer,
                () = self.inner.clock.sleep_until(self.answer_limit()) => {
                    if last_failure.is_none() && self.asked_too_late(sent) {
                        return Err(End::Busy);
                    }
                    // What was answered before says more.
                    let silence = || BackendError::transient("no answer within the wait limit");
                    Err(last_failure.take().unwrap_or_else(silence))
                }
            };
            self.count(&answer);
            turn.set_troubled(answer.is_err());
            let failure = match answer {
                Ok(Attempt::Held(grant)) => return Ok((grant, sent)),
                Ok(Attempt::Busy { ask_again }) => {
                    backoff.reset();
                    self.contended = true;
                    self.wait(contender, ask_again).await?
                }
                Err(error) => Some(error),
            };
            last_failure = match failure {
                Some(error) => Some(self.pause(error, &mut backoff).await?),
                None => None,
            };
        }
    }

    /// Waits until another attempt makes sense; an error of the waiting itself is returned as one
    /// that an attempt may mend.
    async fn wait(
        &self,
        contender: &mut dyn Contender,
        ask_again: Option<Duration>,
    ) -> Result<Option<BackendError>, End> {
        let now = self.inner.clock.now();
        if now >= self.wait_limit() {
            return Err(End::Busy);
        }
        let again = ask_again.map_or(self.wait_limit(), |after| now + after);
        tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(End::Abandoned),
            woken = contender.wait() => Ok(woken.err()),
            () = self.inner.clock.sleep_until(again.min(self.wait_limit())) => {
                if again >= self.wait_limit() { Err(End::Busy) } else { Ok(None) }
            }
        }
    }

    /// Pauses after a failure, or ends with it.
    async fn pause(&self, error: BackendError, backoff: &mut Backoff) -> Result<BackendError, End> {
        let again = self.inner.clock.now() + backoff.next();
        if error.is_permanent() || again >= self.answer_limit() {
            return Err(End::Unavailable(error));
        }
        tracing::debug!(lock = %self.options.name, %error, "the lock server gave no answer");
        tokio::select! {
            () = self.abandoned.cancelled() => Err(End::Abandoned),
            () = self.inner.clock.sleep_until(again) => Ok(error),
        }
    }

    /// Makes a guard of a grant, unless its answer came so late that it is worth nothing.
    fn hold(
        &self,
        nonce: Nonce,
        grant: Grant,
        sent: Moment,
        turn: Turn,
    ) -> Result<LockGuard, Turn> {
        let now = self.inner.clock.now();
        if now >= self.options.valid_until(sent, grant.lease, now) {
            return Err(turn);
        }
        let renewal = sent + grant.lease / 3;
        let inner = Arc::clone(&self.inner);
        let hold = Hold::new(inner, self.options.clone(), nonce, grant, sent, turn);
        let hold = Arc::new(hold);
        self.inner.watchdog.insert(&hold, hold.times(renewal));
        self.inner
            .hooks
            .acquired(self.options.label, self.waited(), self.contended);
        Ok(LockGuard::new(hold))
    }

    fn give_back(&self, nonce: Nonce, turn: Turn, done: Option<oneshot::Sender<Released>>) {
        self.inner.release(ReleaseJob {
            name: Arc::clone(&self.options.name),
            nonce,
            lease: self.options.lease,
            turn: Some(turn),
            done,
            held: None,
        });
    }

    fn count(&self, answer: &Result<Attempt, BackendError>) {
        let outcome = match answer {
            Ok(Attempt::Held(_)) => AttemptOutcome::Held,
            Ok(Attempt::Busy { .. }) => AttemptOutcome::Busy,
            Err(_) => AttemptOutcome::Failed,
        };
        self.inner.hooks.attempted(self.options.label, outcome);
    }
}
