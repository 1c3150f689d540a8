//! The state of one held lock, shared by its guards and the watchdog.
//!
//! One short mutex protects every decision. A loss is final: the first reason stays, and later
//! answers of the server are ignored.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{Grant, Renewed, Request};
use crate::held::engine::Engine;
use crate::held::options::{Options, possible_lease};
use crate::held::queue::Turn;
use crate::held::release::{HoldMetrics, ReleaseJob};
use crate::shared::clock::Moment;
use crate::shared::error::{BackendError, LockError, LostReason};
use crate::shared::lock::lock;

#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) engine: Arc<Engine>,
    pub(crate) id: u64,
    pub(crate) request: Request,
    /// An attempt to acquire the lock was not answered.
    unclear: bool,
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
    /// Keeps other tasks of this process in the local queue, if the lock has one holder.
    turn: Option<Turn>,
}

/// The state of a lock as far as the guard knows without asking the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockState {
    /// The lock is held, and the last renewal succeeded.
    Held,
    /// The lock is held until [`LockGuard::valid_until`](crate::LockGuard::valid_until), but the last renewal got no answer.
    Suspect,
    /// The lock is no longer held. This is final.
    Lost(LostReason),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenewalKind {
    /// At its usual time. It counts towards `max_renewals`.
    Regular,
    /// By the user. `max_renewals` does not apply.
    Extend,
    /// Because the back end has seen trouble. It detects a loss, but does not help a hanging holder:
    /// with `max_renewals` it changes no deadline.
    Check,
}

impl Hold {
    /// Creates a hold with one guard, from a grant whose request was sent at `sent`. An earlier one may be
    /// `unclear`.
    pub(crate) fn new(
        engine: Arc<Engine>,
        options: Options,
        (request, unclear): (Request, bool),
        grant: Grant,
        sent: Moment,
        turn: Option<Turn>,
    ) -> Self {
        let acquired_at = engine.clock.now();
        let valid_until = options.valid_until(sent, grant.lease, acquired_at);
        Self {
            id: engine.next_hold_id(),
            request,
            unclear,
            acquired_at,
            state: Mutex::new(State {
                guards: 1,
                valid_until,
                renewals: 0,
                suspect: false,
                ended: None,
                turn,
            }),
            ended: watch::Sender::new(None),
            grant,
            options,
            engine,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.request.name
    }

    pub(crate) fn token(&self) -> Option<i64> {
        self.grant.fence.as_ref().map(|fence| fence.token.get())
    }

    pub(crate) fn label(&self) -> &'static str {
        self.options.label
    }

    /// Adds the request and the name of this lock to an error of the back end.
    pub(crate) fn unavailable(&self, operation: &str, error: BackendError) -> LockError {
        let request = format!("{operation} {:?}", self.name());
        self.engine.failed(request, error)
    }

    pub(crate) fn valid_until(&self) -> Moment {
        lock(&self.state).valid_until
    }

    pub(crate) fn held_for(&self) -> Duration {
        self.engine.clock.now().since(self.acquired_at)
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<LostReason>> {
        self.ended.subscribe()
    }

    /// Returns why the hold has ended, if it has. It checks the clock, but does not ask the server.
    pub(crate) fn ended(&self) -> Option<LostReason> {
        let deadline = {
            let state = lock(&self.state);
            if state.ended.is_some() {
                return state.ended;
            }
            state.valid_until
        };
        // The watchdog's timer may be late, so compare the clock too.
        (self.engine.clock.now() >= deadline).then(|| self.end_at_deadline())
    }

    pub(crate) fn lock_state(&self) -> LockState {
        match self.ended() {
            Some(reason) => LockState::Lost(reason),
            None if lock(&self.state).suspect => LockState::Suspect,
            None => LockState::Held,
        }
    }

    pub(crate) fn add_guard(&self, limit: usize) -> Result<(), usize> {
        let mut state = lock(&self.state);
        if state.guards >= limit {
            return Err(limit);
        }
        state.guards += 1;
        Ok(())
    }

    /// Removes a guard. Returns true if it was the last one.
    ///
    /// # Errors
    /// Returns the reason if the lock is no longer held.
    pub(crate) fn remove_guard(&self) -> Result<bool, LostReason> {
        // This ends the hold if its deadline has just passed.
        self.ended();
        let mut state = lock(&self.state);
        state.guards -= 1;
        state.ended.map_or(Ok(state.guards == 0), Err)
    }

    /// Creates a renewal request, with `lease` or with the lock's own lease.
    pub(crate) fn renewal(&self, lease: Option<Duration>) -> Request {
        Request {
            lease: lease.map_or(self.request.lease, possible_lease),
            ..self.request.clone()
        }
    }

    /// Processes the result of a renewal that was sent at `sent`. Returns when to renew the lock
    /// again, or `None` to leave that as it is.
    pub(crate) fn apply_renewal(
        &self,
        sent: Moment,
        renewed: Renewed,
        kind: RenewalKind,
    ) -> Option<Moment> {
        let limited_check = kind == RenewalKind::Check && self.options.max_renewals.is_some();
        let keeps_pace = kind == RenewalKind::Extend || limited_check;
        match renewed {
            Renewed::Held(lease) => {
                // Check before moving the deadline: an answer after the deadline is too late.
                if self.ended().is_some() {
                    return None;
                }
                let mut state = lock(&self.state);
                if state.ended.is_some() {
                    return None;
                }
                state.suspect = false;
                let is_regular = kind == RenewalKind::Regular;
                if !limited_check && (!is_regular || self.is_below_limit(&state)) {
                    let valid_until = self.options.valid_until(sent, lease, self.acquired_at);
                    state.valid_until = state.valid_until.max(valid_until);
                    state.renewals += u32::from(is_regular);
                }
                // An extended lease does not slow the renewals down: they also detect losses.
                (!keeps_pace).then(|| sent + lease.min(self.grant.lease) / 3)
            }
            Renewed::Gone(reason) => {
                self.lose(reason);
                None
            }
            Renewed::Unknown => {
                let mut state = lock(&self.state);
                if state.ended.is_some() {
                    return None;
                }
                state.suspect = true;
                drop(state);
                // After a quick error, this leaves time for several attempts before the deadline; after a
                // time-out, for one.
                (!keeps_pace).then(|| self.engine.clock.now() + self.grant.lease / 20)
            }
        }
    }

    pub(crate) fn may_renew(&self) -> bool {
        self.is_below_limit(&lock(&self.state))
    }

    fn is_below_limit(&self, state: &State) -> bool {
        let limit = self.options.max_renewals;
        limit.is_none_or(|limit| state.renewals < limit)
    }

    /// Ends the hold at its deadline, and finds the reason.
    pub(crate) fn end_at_deadline(&self) -> LostReason {
        let renewals = lock(&self.state).renewals;
        let limit = self.options.hold_limit(self.acquired_at);
        let reason = if self.valid_until() >= limit {
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
        let hooks = &self.engine.hooks;
        hooks.report(|hooks| hooks.lost(self.label(), held, reason));
        tracing::warn!(
            lock = %self.name(), token = self.token(), ?held, reason = reason.name(),
            "a lock was lost",
        );
        // After these reasons the server no longer knows the holder, but an unanswered request to
        // acquire the lock may still arrive.
        let is_gone = matches!(
            reason,
            LostReason::Stolen | LostReason::Revoked | LostReason::SessionExpired
        );
        if is_gone && !self.unclear {
            return reason;
        }
        // The margin is the time that running work has to stop.
        let margin = self.options.margin(self.grant.lease);
        let not_before = (!is_gone).then(|| self.engine.clock.now() + margin);
        self.engine.release(self.to_release(turn, not_before, None));
        reason
    }

    /// Ends the hold. Fails with the earlier reason if it has already ended.
    fn end(&self, reason: LostReason) -> Result<Option<Turn>, LostReason> {
        let turn = {
            let mut state = lock(&self.state);
            if let Some(earlier) = state.ended {
                return Err(earlier);
            }
            state.ended = Some(reason);
            state.turn.take()
        };
        self.ended.send_replace(Some(reason));
        self.engine.watchdog.remove(self.id);
        Ok(turn)
    }

    /// Ends the hold and returns its release. Fails if the lock was lost first.
    pub(crate) fn end_release(&self) -> Result<ReleaseJob, LostReason> {
        let turn = self.end(LostReason::Released)?;
        let metrics = HoldMetrics {
            label: self.label(),
            held_for: self.held_for(),
        };
        Ok(self.to_release(turn, None, Some(metrics)))
    }

    /// Removes a guard. If it was the last one, releases the lock in the background, unless it was lost.
    /// Returns whether it is released.
    pub(crate) fn abandon(&self) -> bool {
        if self.remove_guard() != Ok(true) {
            return false;
        }
        let Ok(job) = self.end_release() else {
            return false;
        };
        self.engine.release(job);
        true
    }

    /// The release of an ended hold. If `metrics` is given, it also reports the end to the hooks.
    fn to_release(
        &self,
        turn: Option<Turn>,
        not_before: Option<Moment>,
        metrics: Option<HoldMetrics>,
    ) -> ReleaseJob {
        let remaining = self.valid_until().since(self.engine.clock.now());
        ReleaseJob {
            request: Request {
                lease: remaining.max(self.grant.lease),
                ..self.request.clone()
            },
            unclear: self.unclear,
            not_before,
            turn,
            done: None,
            metrics,
        }
    }
}
