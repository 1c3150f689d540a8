//! A lock service in memory whose leases end whenever a schedule wants it.
//!
//! It grants in the order of asking, and mints a token that grows with each acquisition. The lease
//! of an acquisition may end at any step, as often as the world allows: then the next one holds the
//! lock, and the holder before it goes on, not knowing. (A pause of that holder needs no modelling:
//! any schedule may leave it aside for as long as it likes.)

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use stocklock::stock::Fence;
use stocklock::strategy::{Held, Lock, Service};
use stocklock_locks::LockError;

use super::explore::{Decisions, yield_once};

/// The one lock of the model; clones are the same one.
#[derive(Clone)]
pub(crate) struct ModelLock {
    state: Arc<Mutex<State>>,
    decisions: Decisions,
}

#[derive(Debug, Default)]
struct State {
    /// The token of the acquisition that holds it.
    holder: Option<i64>,
    /// The last token minted.
    last: i64,
    waiters: VecDeque<(i64, Waker)>,
    tickets: i64,
    /// How many more leases may end early.
    losses: u32,
}

impl ModelLock {
    /// A free lock, of which at most `losses` leases end before their holder releases them.
    pub(crate) fn new(decisions: &Decisions, losses: u32) -> Self {
        let state = State {
            losses,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            decisions: decisions.clone(),
        }
    }

    /// Decides whether the lease of this acquisition ends before it is released; if so, at any
    /// later step.
    fn decide_on_the_lease(&self, token: i64) {
        if self.state().losses == 0 || self.decisions.choose(2) == 0 {
            return;
        }
        self.state().losses -= 1;
        let lock = self.clone();
        self.decisions.spawn(Box::pin(async move {
            yield_once().await;
            lock.decisions.note("the lease is lost");
            lock.state().end(token);
        }));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Ends this acquisition, unless it has ended.
    fn end(&mut self, token: i64) {
        if self.holder != Some(token) {
            return;
        }
        self.holder = None;
        if let Some((_, waker)) = self.waiters.front() {
            waker.wake_by_ref();
        }
    }

    /// Grants the lock to whoever has waited longest, once it is free.
    fn poll_acquire(&mut self, ticket: i64, context: &Context<'_>) -> Poll<i64> {
        let is_next = self
            .waiters
            .front()
            .is_none_or(|(first, _)| *first == ticket);
        if self.holder.is_none() && is_next {
            self.waiters.pop_front();
            self.last += 1;
            self.holder = Some(self.last);
            return Poll::Ready(self.last);
        }
        if let Some(waiter) = self.waiters.iter_mut().find(|waiter| waiter.0 == ticket) {
            waiter.1.clone_from(context.waker());
        } else {
            self.waiters.push_back((ticket, context.waker().clone()));
        }
        Poll::Pending
    }
}

impl fmt::Debug for ModelLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(f)
    }
}

#[async_trait]
impl Lock for ModelLock {
    fn service(&self) -> Service {
        Service::Redis
    }

    async fn acquire(&self, _name: &str, _wait: Duration) -> Result<Box<dyn Held>, LockError> {
        yield_once().await;
        self.decisions.note("ask for the lock");
        let ticket = {
            let mut state = self.state();
            state.tickets += 1;
            state.tickets
        };
        let token =
            std::future::poll_fn(|context| self.state().poll_acquire(ticket, context)).await;
        self.decisions.note("hold the lock");
        self.decide_on_the_lease(token);
        let lock = self.clone();
        Ok(Box::new(ModelHold { lock, token }))
    }

    async fn ping(&self) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self) {}
}

/// One acquisition.
#[derive(Debug)]
struct ModelHold {
    lock: ModelLock,
    token: i64,
}

#[async_trait]
impl Held for ModelHold {
    fn fence(&self) -> Fence {
        Fence {
            token: self.token,
            source: "model".into(),
        }
    }

    /// The truth, which a real holder knows only from its clock.
    fn is_lost(&self) -> bool {
        self.lock.state().holder != Some(self.token)
    }

    async fn release(self: Box<Self>) {}
}

/// The release arrives at once. One that is late only keeps the others waiting.
impl Drop for ModelHold {
    fn drop(&mut self) {
        self.lock.state().end(self.token);
    }
}
