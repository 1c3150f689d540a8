//! What a back end without a server stores.
//!
//! It follows the Redis scripts step by step, so tests on the model also apply to them: a nonce that asks
//! again already has the lock, a renewal never shortens a lease, and each token is greater than all earlier
//! ones. Each request is executed alone, under one mutex.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::locks::{Lock, Place};
use super::numbers::NumberTable;
use crate::claims::{Attempt, Claim, Fence, Grant, LockView, Release, Renewed, Request};
use crate::shared::clock::{Clock, Moment};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::lock::lock;
use crate::shared::nonce::{Nonce, REMEMBERED};
use crate::shared::numbers::{Changed, NumberKey, NumberRequest};
use crate::shared::token::Token;
use crate::shared::topics::{Listener, Topics};

#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) clock: Arc<dyn Clock>,
    /// Their names are those of locks, the nonces of waiters for permits, and [`NumberKey::topic`].
    wake_ups: Topics,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    exclusive: HashMap<Arc<str>, Lock>,
    permits: HashMap<Arc<str>, Lock>,
    last_token: i64,
    /// The id under which tokens are issued.
    source: Option<Arc<str>>,
    /// The acquisitions that were released before their request arrived. That request gets no lock.
    tombstones: HashSet<Nonce>,
    /// The holders from which a lock was taken away: until their lease would have ended, and for two minutes
    /// at least.
    revoked: HashMap<Nonce, Moment>,
    /// Who has started the period of a job, and when it ends.
    periods: HashMap<String, (Nonce, Moment)>,
    numbers: NumberTable,
    /// How many of the next wake-ups are lost.
    lost_wake_ups: u32,
}

impl Tables {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            wake_ups: Topics::default(),
            state: Mutex::default(),
        }
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Tries to acquire a lock. The candidate becomes the source of a server that has none. A request for permits
    /// that is not granted stays in the queue for three times the fallback.
    pub(crate) fn acquire(
        &self,
        request: &Request,
        fallback: Duration,
        candidate: Arc<str>,
    ) -> Result<Attempt, BackendError> {
        let now = self.now();
        let mut state = lock(&self.state);
        if state.tombstones.contains(&request.nonce) {
            return Err(BackendError::already_released());
        }
        let next_token = Token::new(state.last_token + 1);
        let locks = state.locks(request.claim);
        let lock = locks.entry(Arc::clone(&request.name)).or_default();
        let acquired = lock.acquire(now, request, next_token, fallback);
        let next = lock.next();
        self.wake_waiter(&mut state, next);
        Ok(match acquired {
            Ok(token) => {
                state.last_token = state.last_token.max(token.get());
                let source = Arc::clone(state.source.get_or_insert(candidate));
                Attempt::Held(Grant {
                    fence: Some(Fence { token, source }),
                    lease: request.lease,
                })
            }
            Err(denied) => denied,
        })
    }

    pub(crate) fn listen(&self, request: &Request) -> Listener {
        match request.claim {
            Claim::Exclusive => self.wake_ups.listen(&request.name),
            Claim::Permits { .. } => self.wake_ups.listen(&request.nonce.to_string()),
        }
    }

    pub(crate) fn listen_to_number(&self, key: &NumberKey) -> Listener {
        self.wake_ups.listen(&key.topic())
    }

    pub(crate) fn renew(&self, renewals: &[Request]) -> Vec<Renewed> {
        let now = self.now();
        let mut state = lock(&self.state);
        let renew = |renewal: &Request| {
            let (nonce, lease) = (renewal.nonce, renewal.lease);
            match state.holder(now, &renewal.name, nonce, renewal.claim) {
                Some(holder) => {
                    holder.until = holder.until.max(now + lease);
                    Renewed::Held(lease)
                }
                None => Renewed::Gone(state.reason(now, nonce)),
            }
        };
        renewals.iter().map(renew).collect()
    }

    /// With `buries`, a late request to acquire the lock takes nothing.
    pub(crate) fn release(&self, request: &Request, unclear: bool, buries: bool) -> Release {
        let now = self.now();
        let mut state = lock(&self.state);
        let nonce = request.nonce;
        let was_held = self.free(&mut state, now, &request.name, nonce, request.claim);
        if buries && (unclear || !was_held) {
            state.tombstones.insert(nonce);
        }
        if was_held {
            Release::Released
        } else {
            Release::NotHeld(state.reason(now, nonce))
        }
    }

    /// Frees a lock, or leaves its queue. Returns whether the nonce held it.
    fn free(&self, state: &mut State, now: Moment, name: &str, nonce: Nonce, claim: Claim) -> bool {
        let locks = state.locks(claim);
        let Some(lock) = locks.get_mut(name) else {
            return false;
        };
        lock.expire(now);
        let was_held = lock.remove(nonce);
        let next = lock.next();
        if lock.len() == 0 {
            locks.remove(name);
        }
        self.wake_waiter(state, next);
        if was_held && claim == Claim::Exclusive {
            self.wake(state, name);
        }
        was_held
    }

    fn wake(&self, state: &mut State, topic: &str) {
        match state.lost_wake_ups.checked_sub(1) {
            Some(rest) => state.lost_wake_ups = rest,
            None => self.wake_ups.publish(topic),
        }
    }

    fn wake_waiter(&self, state: &mut State, waiter: Option<Nonce>) {
        if let Some(nonce) = waiter {
            self.wake(state, &nonce.to_string());
        }
    }

    pub(crate) fn lose_wake_ups(&self, times: u32) {
        lock(&self.state).lost_wake_ups = times;
    }

    /// Gives permits back, except `keep` of them.
    pub(crate) fn reduce(&self, name: &str, nonce: Nonce, keep: u32) -> Option<LostReason> {
        let now = self.now();
        let mut state = lock(&self.state);
        let Some(holder) = state.holder(now, name, nonce, Claim::READ) else {
            return Some(state.reason(now, nonce));
        };
        holder.take = holder.take.min(keep);
        let lock = state.permits.get_mut(name);
        let next = lock.and_then(|lock| {
            lock.expire(now);
            lock.next()
        });
        self.wake_waiter(&mut state, next);
        None
    }

    pub(crate) fn verify(&self, name: &str, nonce: Nonce) -> Option<LostReason> {
        let now = self.now();
        let mut state = lock(&self.state);
        let mut claims = [Claim::Exclusive, Claim::READ].into_iter();
        let is_held = claims.any(|claim| state.holder(now, name, nonce, claim).is_some());
        (!is_held).then(|| state.reason(now, nonce))
    }

    pub(crate) fn inspect(&self, name: &str, claim: Claim) -> LockView {
        let now = self.now();
        let mut state = lock(&self.state);
        let lock = state.locks(claim).get_mut(name);
        lock.map(|lock| lock.view(now)).unwrap_or_default()
    }

    pub(crate) fn revoke(&self, name: &str, nonce: Nonce, claim: Claim, buries: bool) -> bool {
        let now = self.now();
        let mut state = lock(&self.state);
        if let Some(holder) = state.holder(now, name, nonce, claim) {
            let until = holder.until.max(now + REMEMBERED);
            self.free(&mut state, now, name, nonce, claim);
            state.revoked.retain(|_, until| *until > now);
            state.revoked.insert(nonce, until);
            if buries {
                state.tombstones.insert(nonce);
            }
        }
        state.is_revoked(now, nonce)
    }

    /// Starts a period. Returns the rest of one that another nonce has started.
    pub(crate) fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Option<Duration> {
        let now = self.now();
        let periods = &mut lock(&self.state).periods;
        periods.retain(|_, (_, end)| *end > now);
        let begun = periods.entry(name.to_owned());
        let (starter, end) = *begun.or_insert((nonce, now + period));
        (starter != nonce).then(|| end.since(now))
    }

    pub(crate) fn change(
        &self,
        request: &NumberRequest,
        remember: Duration,
    ) -> Result<Changed, BackendError> {
        let now = self.now();
        let mut state = lock(&self.state);
        let changed = state.numbers.change(now, request, remember);
        self.wake(&mut state, &request.key.topic());
        changed
    }

    pub(crate) fn number(&self, key: &NumberKey) -> i64 {
        let now = self.now();
        lock(&self.state).numbers.value(now, key)
    }

    pub(crate) fn stored_numbers(&self) -> usize {
        let now = self.now();
        lock(&self.state).numbers.len(now)
    }

    pub(crate) fn tokens(&self, name: &str) -> Vec<Token> {
        let now = self.now();
        let state = lock(&self.state);
        let lock = state.permits.get(name);
        lock.map_or_else(Vec::new, |lock| lock.tokens(now).collect())
    }

    /// Returns the number of holders, and of waiters for permits.
    pub(crate) fn held(&self) -> usize {
        let now = self.now();
        let mut state = lock(&self.state);
        let State {
            exclusive, permits, ..
        } = &mut *state;
        let live = |lock: &mut Lock| {
            lock.expire(now);
            lock.len()
        };
        let all = exclusive.values_mut().chain(permits.values_mut());
        all.map(live).sum()
    }

    /// Removes the holders of a lock, without waking its waiters.
    pub(crate) fn expire(&self, name: &str) {
        let mut state = lock(&self.state);
        for claim in [Claim::Exclusive, Claim::READ] {
            if let Some(lock) = state.locks(claim).get_mut(name) {
                lock.holders.clear();
            }
        }
    }

    /// Forgets everything but the last token.
    pub(crate) fn clear(&self) {
        let mut state = lock(&self.state);
        *state = State {
            last_token: state.last_token,
            lost_wake_ups: state.lost_wake_ups,
            ..State::default()
        };
    }
}

impl State {
    fn locks(&mut self, claim: Claim) -> &mut HashMap<Arc<str>, Lock> {
        match claim {
            Claim::Exclusive => &mut self.exclusive,
            Claim::Permits { .. } => &mut self.permits,
        }
    }

    fn holder(
        &mut self,
        now: Moment,
        name: &str,
        nonce: Nonce,
        claim: Claim,
    ) -> Option<&mut Place> {
        let lock = self.locks(claim).get_mut(name)?;
        lock.holder(now, nonce)
    }

    fn is_revoked(&self, now: Moment, nonce: Nonce) -> bool {
        self.revoked.get(&nonce).is_some_and(|until| *until > now)
    }

    fn reason(&self, now: Moment, nonce: Nonce) -> LostReason {
        if self.is_revoked(now, nonce) {
            LostReason::Revoked
        } else {
            LostReason::Stolen
        }
    }
}
