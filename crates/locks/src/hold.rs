//! The state of one held lock, shared by its guards, the watchdog and the release task.
//!
//! One short mutex protects every decision. A loss is final: the first reason stays, and later
//! answers of the server are ignored.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{Grant, Renewal, Renewed};
use crate::builder::Options;
use crate::clock::Moment;
use crate::error::{BackendError, LockError, LostReason};
use crate::guard::LockState;
use crate::manager::Inner;
use crate::nonce::Nonce;
use crate::queue::Turn;
use crate::release::{Done, HoldMetrics, ReleaseJob};

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) inner: Arc<Inner>,
    pub(crate) id: u64,
    pub(crate) nonce: Nonce,
    pub(crate) grant: Grant,
    pub(crate) acquired_at: Moment,
    options: Options,
    state: Mutex<State>,
    /// Publishes the reason for the end of the hold.
    ended: watch::Sender<Option<LostReason>>,
}

#[derive(Debug)]
struct State {
    guards: usize,
    valid_until: Moment,
    renewals: u32,
    suspect: bool,
    ended: Option<LostReason>,
    /// Keeps other tasks of this process in the local queue.
    turn: Option<Turn>,
}

/// When the watchdog must check and renew a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DueTimes {
    pub(crate) deadline: Moment,
    pub(crate) renewal: Option<Moment>,
}

impl Hold {
    /// Creates a hold with one guard, from a grant whose request was sent at `sent`.
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

    /// Adds the request and the name of this lock to an error of the back end.
    pub(crate) fn unavailable(&self, operation: &str, error: BackendError) -> LockError {
        let request = format!("{operation} {:?}", self.name());
        LockError::Unavailable(error.with_request(self.inner.backend.properties().name, request))
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

    /// Returns why the hold has ended, if it has. It checks the clock, but does not ask the server.
    pub(crate) fn ended(&self) -> Option<LostReason> {
        let deadline = {
            let state = self.state();
            if state.ended.is_some() {
                return state.ended;
            }
            state.valid_until
        };
        // The watchdog's timer may be late, so compare the clock too.
        (self.inner.clock.now() >= deadline).then(|| self.end_at_deadline())
    }

    pub(crate) fn lock_state(&self) -> LockState {
        match self.ended() {
            Some(reason) => LockState::Lost(reason),
            None if self.state().suspect => LockState::Suspect,
            None => LockState::Held,
        }
    }

    /// Adds a guard. Fails if there are already `limit` guards.
    pub(crate) fn add_guard(&self, limit: usize) -> Result<(), usize> {
        let mut state = self.state();
        if state.guards >= limit {
            return Err(limit);
        }
        state.guards += 1;
        Ok(())
    }

    /// Removes a guard. Returns true if it was the last one and the lock is still held.
    pub(crate) fn remove_guard(&self) -> bool {
        let mut state = self.state();
        state.guards -= 1;
        state.guards == 0 && state.ended.is_none()
    }

    /// Creates a renewal request, with `lease` or with the lock's own lease.
    pub(crate) fn renewal(&self, lease: Option<Duration>) -> Renewal {
        Renewal {
            name: Arc::clone(self.name()),
            nonce: self.nonce,
            lease: lease.unwrap_or(self.options.lease),
        }
    }

    /// Processes the result of a renewal that was sent at `sent`. Returns the next due times,
    /// unless the hold has ended.
    pub(crate) fn apply_renewal(
        &self,
        sent: Moment,
        renewed: Renewed,
        counted: bool,
    ) -> Option<DueTimes> {
        match renewed {
            Renewed::Held(lease) => {
                // Check before moving the deadline: an answer after the deadline is too late.
                if self.ended().is_some() {
                    return None;
                }
                let mut state = self.state();
                if state.ended.is_some() {
                    return None;
                }
                state.suspect = false;
                // `extend` always applies. A nudge may cause more renewals than `max_renewals`;
                // they do not count.
                if !counted || self.may_renew(&state) {
                    let valid_until = self.options.valid_until(sent, lease, self.acquired_at);
                    state.valid_until = state.valid_until.max(valid_until);
                    state.renewals += u32::from(counted);
                }
                drop(state);
                Some(self.due_times(sent + lease / 3))
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
                // This leaves time for several more attempts before the deadline.
                Some(self.due_times(self.inner.clock.now() + self.grant.lease / 20))
            }
        }
    }

    /// Returns the due times, with the next renewal at `renewal` if another renewal is allowed.
    pub(crate) fn due_times(&self, renewal: Moment) -> DueTimes {
        let state = self.state();
        DueTimes {
            deadline: state.valid_until,
            renewal: self.may_renew(&state).then_some(renewal),
        }
    }

    fn may_renew(&self, state: &State) -> bool {
        let limit = self.options.max_renewals;
        limit.is_none_or(|limit| state.renewals < limit)
    }

    /// Ends the hold at its deadline, and finds the reason.
    pub(crate) fn end_at_deadline(&self) -> LostReason {
        let renewals = self.state().renewals;
        let limit = self.options.hold_limit(self.acquired_at);
        let reason = if limit.is_some_and(|limit| self.valid_until() >= limit) {
            LostReason::MaxHold
        } else if self
            .options
            .max_renewals
            .is_some_and(|limit| renewals >= limit)
        {
            LostReason::MaxRenewals
        } else {
            LostReason::Expired
        };
        self.lose(reason)
    }

    /// Ends the hold as lost. If it has already ended, the earlier reason is kept and returned.
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
        // The server may still list this holder: after `max_hold`, or if only the answers to the
        // renewals were lost. After `Stolen` or `SessionExpired` there is nothing to release.
        if !matches!(reason, LostReason::Stolen | LostReason::SessionExpired) {
            self.release_in_background(turn, None, None);
        }
        reason
    }

    /// Ends the hold. Fails with the earlier reason if it has already ended.
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

    /// Passes the hold to the release task. If `metrics` is given, that task reports the end of the
    /// hold to the hooks.
    pub(crate) fn release_in_background(
        &self,
        turn: Option<Turn>,
        done: Option<Done>,
        metrics: Option<HoldMetrics>,
    ) {
        let remaining = self.valid_until().since(self.inner.clock.now());
        self.inner.release(ReleaseJob {
            name: Arc::clone(self.name()),
            nonce: self.nonce,
            lease: remaining.max(self.grant.lease),
            turn,
            done,
            metrics,
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
