//! One held lock: what its guards, the watchdog and the release task share.
//!
//! All decisions about it are made under one short mutex, and lost is final: whatever answer
//! arrives later, the first reason stays and no renewal is believed any more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::backend::{Grant, Renewal, Renewed};
use crate::builder::Options;
use crate::clock::Moment;
use crate::error::{BackendError, LockError, LostReason};
use crate::guard::LockState;
use crate::manager::Inner;
use crate::nonce::Nonce;
use crate::queue::Turn;
use crate::release::{Held, ReleaseJob, Released};

/// A lock that was granted to this process.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) inner: Arc<Inner>,
    pub(crate) id: u64,
    pub(crate) nonce: Nonce,
    pub(crate) grant: Grant,
    pub(crate) acquired_at: Moment,
    options: Options,
    state: Mutex<State>,
    /// The reason for which it ended, for all who wait for that.
    ended: watch::Sender<Option<LostReason>>,
}

#[derive(Debug)]
struct State {
    guards: usize,
    valid_until: Moment,
    renewals: u32,
    suspect: bool,
    ended: Option<LostReason>,
    /// The local line stays closed while this process holds the lock.
    turn: Option<Turn>,
}

/// When the watchdog has to look at a hold again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) deadline: Moment,
    pub(crate) renewal: Option<Moment>,
}

impl Hold {
    /// A hold from a grant whose request was sent at `sent`; it has one guard.
    pub(crate) fn new(
        inner: Arc<Inner>,
        options: Options,
        nonce: Nonce,
        grant: Grant,
        sent: Moment,
        turn: Turn,
    ) -> Self {
        let acquired_at = inner.clock.now();
        let valid_until = options.valid_until(sent, grant.lease, acquired_at);
        Self {
            id: inner.next_hold_id(),
            nonce,
            acquired_at,
            state: Mutex::new(State {
                guards: 1,
                valid_until,
                renewals: 0,
                suspect: false,
                ended: None,
                turn: Some(turn),
            }),
            ended: watch::Sender::new(None),
            grant,
            options,
            inner,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.options.name
    }

    pub(crate) fn label(&self) -> &'static str {
        self.options.label
    }

    /// The error of a question about this lock that was not answered.
    pub(crate) fn unavailable(&self, question: &str, error: BackendError) -> LockError {
        let asked = format!("{question} {:?}", self.name());
        LockError::Unavailable(error.asked(self.inner.backend.name(), asked))
    }

    pub(crate) fn valid_until(&self) -> Moment {
        self.state().valid_until
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.inner.clock.now().since(self.acquired_at)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<LostReason>> {
        self.ended.subscribe()
    }

    /// The reason for which it is held no more; looks at the clock, asks nobody.
    pub(crate) fn ended(&self) -> Option<LostReason> {
        let deadline = {
            let state = self.state();
            if state.ended.is_some() {
                return state.ended;
            }
            state.valid_until
        };
        // A timer may be late; the clock is not.
        (self.inner.clock.now() >= deadline).then(|| self.run_out())
    }

    pub(crate) fn lock_state(&self) -> LockState {
        match self.ended() {
            Some(reason) => LockState::Lost(reason),
            None if self.state().suspect => LockState::Suspect,
            None => LockState::Held,
        }
    }

    /// One more guard, or the number that there may be at most.
    pub(crate) fn enter(&self, limit: usize) -> Result<(), usize> {
        let mut state = self.state();
        if state.guards >= limit {
            return Err(limit);
        }
        state.guards += 1;
        Ok(())
    }

    /// One guard less; true for the last one of a lock that is still held.
    pub(crate) fn leave(&self) -> bool {
        let mut state = self.state();
        state.guards -= 1;
        state.guards == 0 && state.ended.is_none()
    }

    /// The request that renews it with `lease`, or with its own.
    pub(crate) fn renewal(&self, lease: Option<Duration>) -> Renewal {
        Renewal {
            name: Arc::clone(self.name()),
            nonce: self.nonce,
            lease: lease.unwrap_or(self.options.lease),
        }
    }

    /// What a renewal that was sent at `sent` came to. Tells when to look again, unless it ended.
    pub(crate) fn renewed(&self, sent: Moment, renewed: Renewed, counted: bool) -> Option<Times> {
        match renewed {
            Renewed::Held(lease) => {
                // Before the deadline moves: an answer that comes too late changes nothing.
                if self.ended().is_some() {
                    return None;
                }
                let mut state = self.state();
                if state.ended.is_some() {
                    return None;
                }
                state.suspect = false;
                // One that was asked for out of turn may come after the last that counts.
                if !counted || self.may_renew(&state) {
                    let valid_until = self.options.valid_until(sent, lease, self.acquired_at);
                    state.valid_until = state.valid_until.max(valid_until);
                    state.renewals += u32::from(counted);
                }
                drop(state);
                Some(self.times(sent + lease / 3))
            }
            Renewed::Gone(reason) => {
                self.lose(reason);
                None
            }
            Renewed::Unknown => {
                let mut state = self.state();
                if state.ended.is_some() {
                    return None;
                }
                state.suspect = true;
                drop(state);
                // Several more tries before the deadline.
                Some(self.times(self.inner.clock.now() + self.grant.lease / 20))
            }
        }
    }

    /// When to look at it, with its next renewal at `renewal` if it may still be renewed.
    pub(crate) fn times(&self, renewal: Moment) -> Times {
        let state = self.state();
        Times {
            deadline: state.valid_until,
            renewal: self.may_renew(&state).then_some(renewal),
        }
    }

    fn may_renew(&self, state: &State) -> bool {
        let most = self.options.max_renewals;
        most.is_none_or(|most| state.renewals < most)
    }

    /// The time is over: finds the reason.
    pub(crate) fn run_out(&self) -> LostReason {
        let renewals = self.state().renewals;
        let limit = self.options.hold_limit(self.acquired_at);
        let reason = if limit.is_some_and(|limit| self.valid_until() >= limit) {
            LostReason::MaxHold
        } else if self
            .options
            .max_renewals
            .is_some_and(|most| renewals >= most)
        {
            LostReason::MaxRenewals
        } else {
            LostReason::Expired
        };
        self.lose(reason)
    }

    /// Ends it for a reason, unless it has ended; tells the reason for which it did.
    pub(crate) fn lose(&self, reason: LostReason) -> LostReason {
        let turn = match self.end(reason) {
            Ok(turn) => turn,
            Err(earlier) => return earlier,
        };
        let held = self.held_for();
        self.inner.hooks.lost(self.label(), held, reason);
        tracing::warn!(
            lock = %self.name(), token = %self.grant.token, ?held, reason = reason.name(),
            "a lock was lost",
        );
        // The server may still know it as ours: after `max_hold`, or when only the answers to the
        // renewals were lost. What is known to be gone is not ours to release.
        if !matches!(reason, LostReason::Stolen | LostReason::SessionExpired) {
            self.release_in_background(turn, None, None);
        }
        reason
    }

    /// Ends it; `Err` if it had ended before.
    pub(crate) fn end(&self, reason: LostReason) -> Result<Option<Turn>, LostReason> {
        let turn = {
            let mut state = self.state();
            if let Some(earlier) = state.ended {
                return Err(earlier);
            }
            state.ended = Some(reason);
            state.turn.take()
        };
        self.ended.send_replace(Some(reason));
        self.inner.watchdog.remove(self.id);
        Ok(turn)
    }

    /// Hands it to the release task, which counts it if it has not been counted as lost.
    pub(crate) fn release_in_background(
        &self,
        turn: Option<Turn>,
        done: Option<oneshot::Sender<Released>>,
        held: Option<Held>,
    ) {
        let left = self.valid_until().since(self.inner.clock.now());
        self.inner.release(ReleaseJob {
            name: Arc::clone(self.name()),
            nonce: self.nonce,
            lease: left.max(self.grant.lease),
            turn,
            done,
            held,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
