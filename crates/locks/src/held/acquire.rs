//! Acquires a lock: first the local queue, then the server.
//!
//! The caller's future runs the acquisition. If the caller drops the future, the acquisition continues
//! as a task, but only to stop: it releases anything that the server may have recorded.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::field::{Empty, debug};
use tracing::{Instrument, Span, debug_span};

use crate::backend::{Attempt, Claim, Contender, Grant, Left, Request};
use crate::held::engine::Engine;
use crate::held::hold::Hold;
use crate::held::options::Options;
use crate::held::queue::{LocalQueues, Turn};
use crate::held::release::ReleaseJob;
use crate::shared::clock::Moment;
use crate::shared::error::{BackendError, LockError};
use crate::shared::metrics::{AttemptOutcome, NotAcquired};
use crate::shared::nonce::Nonce;
use crate::shared::retry::Backoff;

/// A healthy server usually answers within this time.
const USUAL_ANSWER: Duration = Duration::from_millis(50);

pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    options: Options,
) -> Result<Arc<Hold>, LockError> {
    options.check(&*engine.backend)?;
    let abandoned = engine.closed.child_token();
    let (answer, outcome) = oneshot::channel();
    engine.hooks.report(|hooks| hooks.started(options.label));
    // It costs no allocation if no subscriber wants it.
    let span = debug_span!(
        "acquire_lock",
        lock = %options.name,
        label = options.label,
        waited = Empty,
        outcome = Empty,
    );
    let acquisition = Acquisition {
        started: engine.clock.now(),
        engine: Arc::clone(engine),
        options,
        abandoned: abandoned.clone(),
        contended: false,
        span: span.clone(),
    };
    let job = async move {
        let outcome = acquisition.run().instrument(span).await;
        // The caller may be gone.
        let _ = answer.send(Outcome(Some(outcome)));
    };
    let job = engine.acquisitions.track_future(job);
    // If this future is dropped, the locals are dropped in the reverse order: the job learns that it is
    // abandoned before it continues as a task.
    let mut running = engine.jobs.run(job);
    let abandoned = abandoned.drop_guard();
    (&mut running).await;
    let outcome = outcome.await.ok().and_then(|mut outcome| outcome.0.take());
    abandoned.disarm();
    // There is no outcome only if the manager's runtime was shut down.
    outcome.unwrap_or(Err(LockError::Shutdown))
}

/// The result of the acquisition. A lock that no caller takes is released.
struct Outcome(Option<Result<Arc<Hold>, LockError>>);

impl Drop for Outcome {
    fn drop(&mut self) {
        if let Some(Ok(hold)) = &self.0 {
            hold.abandon();
        }
    }
}

struct Acquisition {
    engine: Arc<Engine>,
    options: Options,
    started: Moment,
    /// Cancelled when the caller drops its future or the manager is shut down. The error is then `Shutdown`.
    abandoned: CancellationToken,
    /// Whether another task or client held the lock when this acquisition asked for it.
    contended: bool,
    span: Span,
}

impl Acquisition {
    async fn run(mut self) -> Result<Arc<Hold>, LockError> {
        let acquired = match self.wait_for_turn().await {
            Ok(turn) => self.acquire_on_server(turn).await,
            Err(error) => Err(error),
        };
        let error = match acquired {
            Ok(hold) => return Ok(hold),
            Err(error) => error,
        };
        let waited = self.waited();
        let (error, why) = match error {
            LockError::WaitLimit { .. } => (error, NotAcquired::WaitLimit),
            LockError::Unavailable(cause) => {
                let request = format!("acquire {:?}", self.options.name);
                (self.engine.failed(request, cause), NotAcquired::Unavailable)
            }
            LockError::InvalidPermits { .. } => (error, NotAcquired::TooFewPermits),
            _ if self.engine.closed.is_cancelled() => (error, NotAcquired::Shutdown),
            _ => (error, NotAcquired::Abandoned),
        };
        let hooks = &self.engine.hooks;
        hooks.report(|hooks| hooks.not_acquired(self.options.label, waited, why));
        self.end_span(waited, why.name());
        Err(error)
    }

    /// The wait limit has passed while another task or client held the lock.
    fn busy<T>(&self) -> Result<T, LockError> {
        let waited = self.waited();
        Err(LockError::WaitLimit { waited })
    }

    /// The local queue of permits does not contain their holders.
    fn queues(&self) -> &LocalQueues {
        match self.options.claim {
            Claim::Exclusive => &self.engine.queues,
            Claim::Permits { .. } => &self.engine.permit_queues,
        }
    }

    fn waited(&self) -> Duration {
        self.engine.clock.now().since(self.started)
    }

    /// The time at which the acquisition stops waiting for other holders.
    fn wait_limit(&self) -> Moment {
        self.started + self.options.wait
    }

    /// The time at which the acquisition stops waiting for the server's answer. With a wait limit
    /// of zero, the server still gets time for one answer.
    fn answer_limit(&self) -> Moment {
        if self.options.wait.is_zero() {
            self.started + self.engine.backend.properties().response_limit
        } else {
            self.wait_limit()
        }
    }

    /// Returns true if the request was sent too close to the wait limit for a healthy server to answer in
    /// time. This holds only if the acquisition spent its time behind other holders, and if the server
    /// answered the task that was first in the local queue.
    fn sent_too_late(&self, sent: Moment) -> bool {
        let unanswered = self.engine.clock.now().since(sent);
        self.contended
            && unanswered < self.engine.backend.properties().response_limit
            && !self.queues().is_failing(&self.options.name)
    }

    /// Returns true if the first task in the local queue waits for a dead server, not for the lock: its last
    /// request failed, or has no answer for longer than a healthy server takes, and half of this wait.
    fn server_is_silent(&self) -> bool {
        let (queues, name) = (self.queues(), &self.options.name);
        let silence = |sent| self.engine.clock.now().since(sent);
        let patience = Some(USUAL_ANSWER.max(self.waited() / 2));
        queues.is_failing(name) || queues.asked(name).map(silence) >= patience
    }

    /// Waits for the first position in the local queue.
    async fn wait_for_turn(&mut self) -> Result<Turn, LockError> {
        if self.abandoned.is_cancelled() {
            return Err(LockError::Shutdown);
        }
        let mut waiter = match self.queues().enter(&self.options.name) {
            Ok(turn) => return Ok(turn),
            Err(waiter) => waiter,
        };
        self.contended = true;
        // First the cancellation: after the end of the manager's runtime, its timers panic.
        tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(LockError::Shutdown),
            turn = waiter.turn() => Ok(turn),
            () = self.engine.clock.sleep_until(self.wait_limit()) => {
                if self.server_is_silent() {
                    let cause = "the server did not answer the first task in the local queue";
                    Err(LockError::Unavailable(BackendError::transient(cause)))
                } else {
                    self.busy()
                }
            }
        }
    }

    /// Asks the server until it grants the lock or the wait limit has passed.
    async fn acquire_on_server(&mut self, turn: Turn) -> Result<Arc<Hold>, LockError> {
        let request = Request {
            name: Arc::clone(&self.options.name),
            nonce: Nonce::random(),
            lease: self.options.lease,
            claim: self.options.claim,
        };
        let mut contender = self.engine.backend.contender(request.clone());
        let answer = self.contend(contender.as_mut(), &turn).await;
        let left = contender.left();
        let unclear = left == Left::Unclear;
        let (end, turn) = match answer {
            Ok((grant, sent)) => {
                match self.create_hold((request.clone(), unclear), grant, sent, turn) {
                    Ok(hold) => return Ok(hold),
                    Err(turn) => {
                        let cause = "the grant arrived when its lease had almost expired";
                        (LockError::Unavailable(BackendError::transient(cause)), turn)
                    }
                }
            }
            Err(end) => (end, turn),
        };
        if left != Left::Nothing {
            let job = ReleaseJob {
                request,
                unclear,
                not_before: None,
                turn: Some(turn),
                done: None,
                metrics: None,
            };
            self.clean_up(job, &end).await;
        }
        Err(end)
    }

    /// Starts the release of everything that this acquisition may have left on the server.
    ///
    /// If the lock was busy, this waits up to [`USUAL_ANSWER`] for the release. Otherwise a caller
    /// that retries immediately could wait behind its own old place in the server's queue.
    async fn clean_up(&self, mut job: ReleaseJob, end: &LockError) {
        if !matches!(end, LockError::WaitLimit { .. }) {
            return self.engine.release(job);
        }
        let (done, is_done) = oneshot::channel();
        job.done = Some(done);
        self.engine.release(job);
        let now = self.engine.clock.now();
        tokio::select! {
            biased;
            _ = is_done => {}
            () = self.engine.clock.sleep_until(now + USUAL_ANSWER) => {}
        }
    }

    async fn contend(
        &mut self,
        contender: &mut dyn Contender,
        turn: &Turn,
    ) -> Result<(Grant, Moment), LockError> {
        let mut backoff = Backoff::default();
        let mut last_failure = None;
        loop {
            let sent = self.engine.clock.now();
            turn.ask(sent);
            let answer = tokio::select! {
                biased;
                () = self.abandoned.cancelled() => return Err(LockError::Shutdown),
                answer = contender.attempt() => answer,
                () = self.engine.clock.sleep_until(self.answer_limit()) => {
                    if last_failure.is_none() && self.sent_too_late(sent) {
                        return self.busy();
                    }
                    // An earlier error explains more than a timeout.
                    let timeout = || BackendError::transient("no answer within the wait limit");
                    Err(last_failure.take().unwrap_or_else(timeout))
                }
            };
            self.count_attempt(&answer);
            turn.set_failing(answer.is_err());
            let failure = match answer {
                Ok(Attempt::Held(grant)) => return Ok((grant, sent)),
                Ok(Attempt::Busy { ask_again }) => {
                    backoff.reset();
                    self.contended = true;
                    self.wait(contender, ask_again).await?
                }
                Ok(Attempt::TooFewPermits { of }) => {
                    let take = self.options.claim.take();
                    return Err(LockError::InvalidPermits { take, of });
                }
                Err(error) => Some(error),
            };
            last_failure = match failure {
                Some(error) => Some(self.pause(error, &mut backoff).await?),
                None => None,
            };
        }
    }

    /// Waits until another attempt makes sense. An error of the wait itself is returned as
    /// `Ok(Some)`, because the next attempt may repair it.
    async fn wait(
        &self,
        contender: &mut dyn Contender,
        ask_again: Option<Duration>,
    ) -> Result<Option<BackendError>, LockError> {
        let now = self.engine.clock.now();
        if now >= self.wait_limit() {
            return self.busy();
        }
        let again = ask_again.map_or(self.wait_limit(), |after| now + after);
        tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(LockError::Shutdown),
            woken = contender.wait() => Ok(woken.err()),
            () = self.engine.clock.sleep_until(again.min(self.wait_limit())) => {
                if again >= self.wait_limit() { self.busy() } else { Ok(None) }
            }
        }
    }

    /// Pauses after an error, or ends the acquisition if the error is permanent or no time is left. With a
    /// wait limit of zero, a refusal is the one answer that the server gets time for.
    async fn pause(
        &self,
        error: BackendError,
        backoff: &mut Backoff,
    ) -> Result<BackendError, LockError> {
        let again = self.engine.clock.now() + backoff.next();
        let is_final = error.is_permanent()
            || (self.options.wait.is_zero() && error.is_refusal() && !error.may_pass_at_once());
        if is_final || again >= self.answer_limit() {
            return Err(LockError::Unavailable(error));
        }
        tracing::debug!(lock = %self.options.name, %error, "an attempt to acquire a lock failed");
        tokio::select! {
            biased;
            () = self.abandoned.cancelled() => Err(LockError::Shutdown),
            () = self.engine.clock.sleep_until(again) => Ok(error),
        }
    }

    /// Turns a grant into a hold with one guard. Fails if the grant arrived too late to be valid.
    fn create_hold(
        &self,
        request: (Request, bool),
        grant: Grant,
        sent: Moment,
        turn: Turn,
    ) -> Result<Arc<Hold>, Turn> {
        let now = self.engine.clock.now();
        if now >= self.options.valid_until(sent, grant.lease, now) {
            return Err(turn);
        }
        // Other tasks of this process may have permits at the same time.
        let turn = (self.options.claim == Claim::Exclusive).then_some(turn);
        let renewal = sent + grant.lease / 3;
        let engine = Arc::clone(&self.engine);
        let hold = Hold::new(engine, self.options.clone(), request, grant, sent, turn);
        let hold = Arc::new(hold);
        self.engine.watchdog.insert(&hold, renewal);
        let waited = self.waited();
        let hooks = &self.engine.hooks;
        hooks.report(|hooks| hooks.acquired(self.options.label, waited, self.contended));
        let outcome = if self.contended { "contended" } else { "free" };
        self.end_span(waited, outcome);
        Ok(hold)
    }

    fn end_span(&self, waited: Duration, outcome: &'static str) {
        let waited = self.span.record("waited", debug(waited));
        waited.record("outcome", outcome);
    }

    fn count_attempt(&self, answer: &Result<Attempt, BackendError>) {
        let outcome = match answer {
            Ok(Attempt::Held(_)) => AttemptOutcome::Held,
            Ok(Attempt::Busy { .. }) => AttemptOutcome::Busy,
            Ok(Attempt::TooFewPermits { .. }) | Err(_) => AttemptOutcome::Failed,
        };
        (self.engine.hooks).report(|hooks| hooks.attempted(self.options.label, outcome));
    }
}
