//! A lock service in memory whose leases may end early, in every way that the explorer tries.
//!
//! It grants the lock in order of arrival, with a token that grows with each acquisition. A lease
//! may end at any step: the next waiter then gets the lock, and the previous holder continues
//! without knowing. A pause of a holder needs no model, because a schedule may delay any task.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::ports::{HeldLock, Lock, LockError};
use crate::stock::Fence;
use crate::strategy::Dependency;
use async_trait::async_trait;

use super::explore::{Decisions, yield_once};

/// The only lock of the model; clones share it.
#[derive(Clone)]
pub struct ModelLock {
    state: Arc<Mutex<State>>,
    decisions: Decisions,
}

#[derive(Debug, Default)]
struct State {
    /// Token of the current holder.
    holder: Option<i64>,
    /// Last token issued.
    last: i64,
    /// Tickets of the waiting acquisitions.
    waiters: VecDeque<(i64, Waker)>,
    /// Last ticket issued.
    tickets: i64,
    /// Number of leases that may still end early.
    losses: u32,
}

impl ModelLock {
    /// A free lock; at most `losses` of its leases end before their holder releases them.
    #[must_use]
    pub fn new(decisions: &Decisions, losses: u32) -> Self {
        let state = State {
            losses,
            ..State::default()
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            decisions: decisions.clone(),
        }
    }

    /// Decides whether the lease of this holder may end at a later step, before its release.
    fn decide_whether_lease_ends(&self, token: i64) {
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
    fn next_ticket(&mut self) -> i64 {
        self.tickets += 1;
        self.tickets
    }

    /// Frees the lock if this acquisition still holds it.
    fn end(&mut self, token: i64) {
        if self.holder != Some(token) {
            return;
        }
        self.holder = None;
        if let Some((_, waker)) = self.waiters.front() {
            waker.wake_by_ref();
        }
    }

    /// Grants the lock when it is free and no other acquisition has waited longer.
    fn poll_acquire(&mut self, ticket: i64, context: &Context<'_>) -> Poll<i64> {
        let first = self.waiters.front();
        let is_next = first.is_none_or(|(first, _)| *first == ticket);
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
    fn dependency(&self) -> Dependency {
        Dependency::Redis
    }

    async fn acquire(&self, _name: &str, _wait: Duration) -> Result<Box<dyn HeldLock>, LockError> {
        yield_once().await;
        self.decisions.note("request the lock");
        let ticket = self.state().next_ticket();
        let token =
            std::future::poll_fn(|context| self.state().poll_acquire(ticket, context)).await;
        self.decisions.note("acquire the lock");
        self.decide_whether_lease_ends(token);
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
impl HeldLock for ModelHold {
    fn fence(&self) -> Fence {
        Fence {
            token: self.token,
            source: "model".into(),
        }
    }

    /// Exact; a real holder knows this only from its clock.
    fn is_lost(&self) -> bool {
        self.lock.state().holder != Some(self.token)
    }

    async fn release(self: Box<Self>) {}
}

/// The release takes effect immediately. A late release would only make the others wait longer.
impl Drop for ModelHold {
    fn drop(&mut self) {
        self.lock.state().end(self.token);
    }
}
