//! Releases locks after their holders are gone.
//!
//! A release is repeated until the server has executed it, for at most two leases. The pauses grow up to a
//! quarter of the lease, ten seconds at most, so that the lock is free soon after an outage. The future of
//! [`LockGuard::release`](crate::LockGuard::release) runs it until the first answer. All others run as
//! tasks.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::backend::{Backend, Release, Request};
use crate::held::queue::Turn;
use crate::shared::clock::{Clock, Moment};
use crate::shared::error::LostReason;
use crate::shared::metrics::Hooks;
use crate::shared::retry::Backoff;

/// What the watchdog and the releases need.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseContext {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Hooks,
}

/// Receives the result of the first attempt to release a lock, or `None` if it failed.
pub(crate) type Done = oneshot::Sender<Option<Result<(), LostReason>>>;

#[derive(Debug)]
pub(crate) struct ReleaseJob {
    /// With the requested lease, or the remaining time of an extended one. The server may shorten it.
    pub(crate) request: Request,
    /// An attempt to acquire the lock was not answered.
    pub(crate) unclear: bool,
    /// When the work of a holder that lost its lock must have stopped.
    pub(crate) not_before: Option<Moment>,
    /// Passed on to the next local waiter after the first attempt.
    pub(crate) turn: Option<Turn>,
    pub(crate) done: Option<Done>,
    /// What to report to the hooks. `None` if the lock was never acquired, or if its loss was
    /// already reported.
    pub(crate) metrics: Option<HoldMetrics>,
}

/// The metrics of a hold that ends with its release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HoldMetrics {
    pub(crate) label: &'static str,
    pub(crate) held_for: Duration,
}

/// Releases a lock. Ends when the server has executed that, or after two leases.
pub(crate) async fn run(context: ReleaseContext, job: ReleaseJob) {
    let ReleaseJob {
        request,
        unclear,
        not_before,
        turn,
        done,
        metrics,
    } = job;
    let name = &request.name;
    let report = |outcome| report(&context, name, metrics, outcome);
    if let Some(moment) = not_before {
        context.clock.sleep_until(moment).await;
    }
    // Two leases: a late acquire request may take the lock for one more lease.
    let (properties, lease) = (context.backend.properties(), request.lease);
    let lease = properties.max_lease.map_or(lease, |limit| lease.min(limit));
    let lease = lease.max(properties.session.unwrap_or_default());
    let until = context.clock.now() + lease * 2;
    let mut backoff = Backoff::of_releases(lease);
    let mut waiting = (turn, done);
    let mut is_first = true;
    loop {
        // First the answer: after the end of the manager's runtime, its timers panic.
        let answer = tokio::select! {
            biased;
            answer = context.backend.release(&request, unclear) => Some(answer),
            () = context.clock.sleep_until(until) => None,
        };
        // Report to the hooks before the caller learns the result. After a repetition, `NotHeld`
        // may be the effect of the first attempt, so it does not prove a loss.
        let outcome = match &answer {
            Some(Ok(Release::NotHeld(reason))) if metrics.is_some() && is_first => {
                Some(Err(*reason))
            }
            Some(Ok(Release::Released | Release::NotHeld(_))) => Some(Ok(())),
            Some(Err(_)) | None => None,
        };
        match outcome {
            Some(outcome) => report(outcome),
            None => is_first = false,
        }
        let (turn, done) = std::mem::take(&mut waiting);
        drop(turn);
        if let Some(done) = done {
            // The receiver may be gone.
            let _ = done.send(outcome);
        }
        match answer {
            Some(Ok(_)) => return,
            Some(Err(error)) => {
                let pause = backoff.next();
                if context.clock.now() + pause < until {
                    tracing::debug!(lock = %name, %error, "releasing a lock failed; trying again");
                    // The caller has its result, and drops the future before it polls the timer.
                    tokio::task::yield_now().await;
                    context.clock.sleep_until(context.clock.now() + pause).await;
                    continue;
                }
                tracing::warn!(lock = %name, %error, "a lock was not released; its lease must expire");
                return report(Ok(()));
            }
            None => {
                tracing::warn!(lock = %name, "a lock was not released; its lease must expire");
                return report(Ok(()));
            }
        }
    }
}

fn report(
    context: &ReleaseContext,
    name: &str,
    metrics: Option<HoldMetrics>,
    outcome: Result<(), LostReason>,
) {
    let Some(HoldMetrics { label, held_for }) = metrics else {
        return;
    };
    let hooks = &context.hooks;
    match outcome {
        Ok(()) => hooks.report(|hooks| hooks.released(label, held_for)),
        Err(reason) => {
            hooks.report(|hooks| hooks.lost(label, held_for, reason));
            tracing::warn!(
                lock = %name, held = ?held_for, reason = reason.name(),
                "a lock had been lost before it was released",
            );
        }
    }
}
