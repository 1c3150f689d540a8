//! Gives locks up, whoever held them has long gone on.
//!
//! Jobs come through a channel that a `Drop` can feed without a runtime. Each is repeated until the
//! server has answered or the lease has run out by itself.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use crate::backend::Release;
use crate::error::LostReason;
use crate::nonce::Nonce;
use crate::queue::Turn;
use crate::retry::Backoff;
use crate::watchdog::Means;

/// A lock to give up.
#[derive(Debug)]
pub(crate) struct ReleaseJob {
    pub(crate) name: Arc<str>,
    pub(crate) nonce: Nonce,
    /// The lease that it was asked for with, or has left.
    pub(crate) lease: Duration,
    /// Whoever is next here may go when the first try has ended.
    pub(crate) turn: Option<Turn>,
    /// Who wants to know how the first try went.
    pub(crate) done: Option<oneshot::Sender<Released>>,
    /// The hold that ends with it, if it has not been counted as lost before.
    pub(crate) held: Option<Held>,
}

/// A hold as it is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) label: &'static str,
    pub(crate) held_for: Duration,
}

/// How a release went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Released {
    /// The lock was held, and is free.
    Yes,
    /// The lock was not held.
    WasNotHeld,
    /// The server gave no answer yet.
    NotYet,
}

/// An order for the release task.
#[derive(Debug)]
pub(crate) enum Order {
    Release(ReleaseJob),
    /// Answer when everything ordered before has been given up.
    Drain(oneshot::Sender<()>),
}

/// The release task; it ends with its manager, after all that was ordered.
pub(crate) async fn run(means: Means, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut running = FuturesUnordered::new();
    let mut drained: Vec<oneshot::Sender<()>> = Vec::new();
    let mut is_open = true;
    while is_open || !running.is_empty() {
        tokio::select! {
            order = orders.recv(), if is_open => match order {
                Some(Order::Release(job)) => running.push(release(&means, job)),
                Some(Order::Drain(done)) => drained.push(done),
                None => is_open = false,
            },
            Some(()) = running.next() => {}
        }
        if running.is_empty() {
            for done in drained.drain(..) {
                // Who does not wait any more does not want to know.
                let _ = done.send(());
            }
        }
    }
}

async fn release(means: &Means, job: ReleaseJob) {
    let ReleaseJob {
        name,
        nonce,
        lease,
        turn,
        done,
        held,
    } = job;
    let count = |was_held| count(means, &name, held, was_held);
    // An acquire that is still on its way could take the lock after us, for one lease.
    let until = means.clock.now() + means.backend.kept_for(lease).max(lease) * 2;
    let mut backoff = Backoff::default();
    let mut tell = (turn, done);
    let mut is_first = true;
    loop {
        let answer = tokio::select! {
            answer = means.backend.release(&name, nonce) => Some(answer),
            () = means.clock.sleep_until(until) => None,
        };
        let outcome = match &answer {
            Some(Ok(Release::Released)) => Released::Yes,
            Some(Ok(Release::NotHeld)) => Released::WasNotHeld,
            Some(Err(_)) | None => Released::NotYet,
        };
        // Before anybody is told. Who asks again cannot tell its own doing from a loss.
        match outcome {
            Released::Yes => count(true),
            Released::WasNotHeld => count(!is_first),
            Released::NotYet => is_first = false,
        }
        let (turn, done) = std::mem::take(&mut tell);
        drop(turn);
        if let Some(done) = done {
            // Who does not wait any more does not want to know.
            let _ = done.send(outcome);
        }
        match answer {
            Some(Ok(_)) => return,
            Some(Err(error)) => {
                let pause = backoff.next();
                if means.clock.now() + pause < until {
                    tracing::debug!(lock = %name, %error, "a lock was not released yet");
                    means.clock.sleep_until(means.clock.now() + pause).await;
                    continue;
                }
                tracing::warn!(lock = %name, %error, "a lock was left to its lease");
                return count(true);
            }
            None => {
                tracing::warn!(lock = %name, "a lock was left to its lease");
                return count(true);
            }
        }
    }
}

/// Counts a hold as released or as lost, by what the server has said.
fn count(means: &Means, name: &str, held: Option<Held>, was_held: bool) {
    let Some(Held { label, held_for }) = held else {
        return;
    };
    if was_held {
        means.hooks.released(label, held_for);
    } else {
        let reason = LostReason::Stolen;
        means.hooks.lost(label, held_for, reason);
        tracing::warn!(
            lock = %name, held = ?held_for, reason = reason.name(),
            "a lock had been lost before it was released",
        );
    }
}
