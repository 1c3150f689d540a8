//! A lock service in memory whose leases may end early, in every way that the explorer tries.
//!
//! It grants the lock with a token that grows with each acquisition, or without one, in order of arrival
//! unless the explorer tries every order. The server may be away when the lock is requested. A lease may end at any step: the next waiter then gets the lock, and the previous holder continues
//! without knowing. A pause of a holder needs no model, because a schedule may delay any task.

use std::sync::Arc;
use std::time::Duration;

use super::explore::{Decisions, yield_once};
use super::mutex::{ModelGuard, ModelMutex};
use crate::ports::{HeldLock, Lock, LockError};
use crate::stock::Fence;
use crate::strategy::Dependency;
use async_trait::async_trait;
use parking_lot::Mutex;

/// One distributed lock, whichever name is requested. Clones share it.
#[derive(Debug, Clone)]
pub struct ModelLock {
    mutex: ModelMutex,
    state: Arc<Mutex<State>>,
    decisions: Decisions,
    has_tokens: bool,
}

#[derive(Debug, Default)]
struct State {
    /// Token of the current holder, and the mutex that it holds.
    holder: Option<(i64, ModelGuard)>,
    last_token: i64,
    /// Number of leases that may still end early.
    losses: u32,
    /// Number of requests that may still fail.
    outages: u32,
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
            mutex: ModelMutex::new(None),
            state: Arc::new(Mutex::new(state)),
            decisions: decisions.clone(),
            has_tokens: true,
        }
    }

    /// Grants it without fencing tokens.
    #[must_use]
    pub fn without_tokens(self) -> Self {
        Self {
            has_tokens: false,
            ..self
        }
    }

    /// Makes it a decision which of its waiters gets the lock.
    #[must_use]
    pub fn with_any_order(self) -> Self {
        Self {
            mutex: ModelMutex::new(Some(&self.decisions)),
            ..self
        }
    }

    /// Lets at most this many requests fail.
    #[must_use]
    pub fn with_outages(self, outages: u32) -> Self {
        self.state.lock().outages = outages;
        self
    }

    /// Decides whether a request fails.
    fn is_away(&self) -> bool {
        let mut state = self.state.lock();
        let away = state.outages > 0 && self.decisions.choose_fault(2) == 1;
        state.outages -= u32::from(away);
        away
    }

    /// Decides whether the lease of this holder may end at a later step, before its release.
    fn decide_whether_lease_ends(&self, token: i64) {
        if self.state.lock().losses == 0 || self.decisions.choose_fault(2) == 0 {
            return;
        }
        self.state.lock().losses -= 1;
        let lock = self.clone();
        self.decisions.spawn(Box::pin(async move {
            yield_once().await;
            lock.decisions.note("the lease is lost");
            lock.end(token);
        }));
    }

    fn is_held_by(&self, token: i64) -> bool {
        let state = self.state.lock();
        state.holder.as_ref().is_some_and(|held| held.0 == token)
    }

    /// Frees the lock if this acquisition still holds it.
    fn end(&self, token: i64) {
        if self.is_held_by(token) {
            let held = self.state.lock().holder.take();
            // Dropped after the state is unlocked, because the explorer may choose the next holder.
            drop(held);
        }
    }
}

#[async_trait]
impl Lock for ModelLock {
    fn dependency(&self) -> Dependency {
        Dependency::Redis
    }

    fn variable(&self) -> &'static str {
        self.dependency().variable()
    }

    async fn acquire(&self, _name: &str, _wait: Duration) -> Result<Box<dyn HeldLock>, LockError> {
        yield_once().await;
        self.decisions.note("request the lock");
        if self.is_away() {
            self.decisions.note("the lock server is away");
            return Err(LockError::Unavailable("away".into()));
        }
        let held = self.mutex.lock().await;
        let token = {
            let mut state = self.state.lock();
            state.last_token += 1;
            state.holder = Some((state.last_token, held));
            state.last_token
        };
        self.decisions.note("acquire the lock");
        self.decide_whether_lease_ends(token);
        let lock = self.clone();
        Ok(Box::new(ModelHeldLock { lock, token }))
    }

    async fn ping(&self) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self) {}
}

/// One acquisition.
#[derive(Debug)]
struct ModelHeldLock {
    lock: ModelLock,
    token: i64,
}

#[async_trait]
impl HeldLock for ModelHeldLock {
    fn fence(&self) -> Option<Fence> {
        self.lock.has_tokens.then(|| Fence {
            token: self.token,
            source: "model".into(),
        })
    }

    /// Exact; a real holder knows this only from its clock.
    fn is_lost(&self) -> bool {
        !self.lock.is_held_by(self.token)
    }

    async fn release(self: Box<Self>) {}
}

/// The release takes effect immediately. A late release would only make the others wait longer.
impl Drop for ModelHeldLock {
    fn drop(&mut self) {
        self.lock.end(self.token);
    }
}
