//! An in-memory table of locks whose holders share permits, used by the back ends `local` and
//! `memory`.
//!
//! It follows the Redis scripts for permits step by step, so tests on the model also apply to them.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::claims::{Attempt, Renewal};
use crate::claims::{Claimant, LockView};
use crate::shared::clock::Moment;
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;
use crate::shared::topics::Topics;

#[derive(Debug, Default)]
pub(crate) struct Shares {
    rows: Mutex<Rows>,
    /// One topic per waiter.
    pub(crate) turns: Topics,
    /// How many of the next wake-ups are lost.
    lost_wake_ups: AtomicU32,
}

#[derive(Debug, Default)]
struct Rows {
    locks: HashMap<String, Lock>,
    last_token: i64,
}

#[derive(Debug, Default)]
struct Lock {
    /// The limit of the latest request.
    of: u32,
    holders: Vec<Holder>,
    queue: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Holder {
    nonce: Nonce,
    take: u32,
    token: Token,
    since: Moment,
    expires_at: Moment,
}

#[derive(Debug)]
struct Waiter {
    nonce: Nonce,
    take: u32,
    since: Moment,
    /// Until then the waiter counts as alive.
    alive_until: Moment,
}

/// A request for `take` of `of` permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) nonce: Nonce,
    pub(crate) take: u32,
    pub(crate) of: u32,
    pub(crate) lease: Duration,
    /// How long the waiter stays in the queue without another request.
    pub(crate) patience: Duration,
}

/// Why permits were not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// A holder or waiter ahead may have expired after this time.
    Busy(Duration),
    /// Fewer permits are left than a queued request wants. It has left the queue.
    TooFewPermits { of: u32 },
}

impl Denied {
    /// The answer to the attempt. The client asks again at the latest after `fallback`.
    pub(crate) fn attempt(self, fallback: Duration) -> Attempt {
        match self {
            Self::Busy(remaining) => Attempt::Busy {
                ask_again: Some(remaining.min(fallback)),
            },
            Self::TooFewPermits { of } => Attempt::TooFewPermits { of },
        }
    }
}

impl Shares {
    /// Acquires permits and returns the token. If too many are in use, or other clients are ahead,
    /// queues the request.
    pub(crate) fn acquire(&self, now: Moment, name: &str, wanted: Wanted) -> Result<Token, Denied> {
        let mut rows = lock(&self.rows);
        let next_token = Token::new(rows.last_token + 1);
        let lock = rows.locks.entry(name.to_owned()).or_default();
        lock.holders.retain(|holder| holder.expires_at > now);
        // A repeated request does not bring an old limit back.
        if !lock.knows(wanted.nonce) {
            lock.of = wanted.of;
        }
        lock.expire(now);
        let acquired = lock.acquire(now, wanted, next_token);
        self.wake(lock);
        if acquired == Ok(next_token) {
            rows.last_token += 1;
        }
        acquired
    }

    /// Returns whether the nonce holds permits.
    pub(crate) fn renew(&self, now: Moment, renewal: &Renewal) -> bool {
        let mut rows = lock(&self.rows);
        let lock = rows.locks.get_mut(&*renewal.name);
        let mut holders = lock.into_iter().flat_map(|lock| &mut lock.holders);
        match holders.find(|holder| holder.nonce == renewal.nonce) {
            Some(holder) if holder.expires_at > now => {
                holder.expires_at = holder.expires_at.max(now + renewal.lease);
                true
            }
            _ => false,
        }
    }

    /// Gives permits back, or leaves the queue. Returns whether the nonce held permits.
    pub(crate) fn release(&self, now: Moment, name: &str, nonce: Nonce) -> bool {
        let mut rows = lock(&self.rows);
        let Some(lock) = rows.locks.get_mut(name) else {
            return false;
        };
        lock.expire(now);
        let before = lock.holders.len();
        lock.holders.retain(|holder| holder.nonce != nonce);
        let was_held = lock.holders.len() < before;
        lock.queue.retain(|waiter| waiter.nonce != nonce);
        self.wake(lock);
        if lock.holders.is_empty() && lock.queue.is_empty() {
            rows.locks.remove(name);
        }
        was_held
    }

    /// Gives permits back, except `keep` of them. Returns false if the nonce holds none.
    pub(crate) fn reduce(&self, now: Moment, name: &str, nonce: Nonce, keep: u32) -> bool {
        let mut rows = lock(&self.rows);
        let Some(lock) = rows.locks.get_mut(name) else {
            return false;
        };
        lock.expire(now);
        let mut holders = lock.holders.iter_mut();
        let holder = holders.find(|holder| holder.nonce == nonce);
        let is_held = holder.is_some();
        if let Some(holder) = holder {
            holder.take = holder.take.min(keep);
        }
        self.wake(lock);
        is_held
    }

    pub(crate) fn holds(&self, now: Moment, name: &str, nonce: Nonce) -> bool {
        let rows = lock(&self.rows);
        let mut holders = rows
            .locks
            .get(name)
            .into_iter()
            .flat_map(|lock| &lock.holders);
        holders.any(|holder| holder.nonce == nonce && holder.expires_at > now)
    }

    /// Returns the holders and waiters, as operators see them.
    pub(crate) fn inspect(&self, now: Moment, name: &str) -> LockView {
        let mut rows = lock(&self.rows);
        let Some(lock) = rows.locks.get_mut(name) else {
            return LockView::default();
        };
        lock.expire(now);
        let claimant = |nonce, permits, token, since, until: Moment| Claimant {
            nonce,
            permits,
            token,
            owner: None,
            age: Some(now.since(since)),
            expires_in: Some(until.since(now)),
        };
        let holder = |h: &Holder| claimant(h.nonce, h.take, Some(h.token), h.since, h.expires_at);
        let waiter = |w: &Waiter| claimant(w.nonce, w.take, None, w.since, w.alive_until);
        LockView {
            holders: lock.holders.iter().map(holder).collect(),
            waiters: lock.queue.iter().map(waiter).collect(),
            ..LockView::default()
        }
    }

    /// The tokens of the holders.
    pub(crate) fn tokens(&self, now: Moment, name: &str) -> Vec<Token> {
        let rows = lock(&self.rows);
        let holders = rows.locks.get(name).into_iter();
        let live = holders.flat_map(|lock| &lock.holders);
        let live = live.filter(|holder| holder.expires_at > now);
        live.map(|holder| holder.token).collect()
    }

    /// Removes the holders of a lock, without waking its waiters.
    pub(crate) fn expire(&self, name: &str) {
        if let Some(lock) = lock(&self.rows).locks.get_mut(name) {
            lock.holders.clear();
        }
    }

    pub(crate) fn clear(&self) {
        lock(&self.rows).locks.clear();
    }

    /// Loses the next `times` wake-ups.
    pub(crate) fn lose_wake_ups(&self, times: u32) {
        self.lost_wake_ups.store(times, Ordering::SeqCst);
    }

    /// Returns the number of holders and waiters.
    pub(crate) fn len(&self, now: Moment) -> usize {
        let mut rows = lock(&self.rows);
        rows.locks.values_mut().for_each(|lock| lock.expire(now));
        let count = |lock: &Lock| lock.holders.len() + lock.queue.len();
        rows.locks.values().map(count).sum()
    }

    /// Wakes the first waiter if there are enough permits for it.
    fn wake(&self, lock: &Lock) {
        if let Some(first) = lock.first()
            && lock.has(first.take)
            && !self.loses_wake_up()
        {
            self.turns.publish(&first.nonce.to_string());
        }
    }

    fn loses_wake_up(&self) -> bool {
        let lost = &self.lost_wake_ups;
        let one_less = |times: u32| times.checked_sub(1);
        lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok()
    }
}

impl Lock {
    fn acquire(&mut self, now: Moment, wanted: Wanted, token: Token) -> Result<Token, Denied> {
        let Wanted { nonce, take, .. } = wanted;
        let expires_at = now + wanted.lease;
        let mut holders = self.holders.iter_mut();
        if let Some(holder) = holders.find(|holder| holder.nonce == nonce) {
            holder.expires_at = holder.expires_at.max(expires_at);
            return Ok(holder.token);
        }
        let of = self.of;
        if take > of {
            self.queue.retain(|waiter| waiter.nonce != nonce);
            return Err(Denied::TooFewPermits { of });
        }
        let is_first = self.first().is_none_or(|first| first.nonce == nonce);
        if is_first && self.has(take) {
            self.queue.retain(|waiter| waiter.nonce != nonce);
            self.holders.push(Holder {
                nonce,
                take,
                token,
                since: now,
                expires_at,
            });
            return Ok(token);
        }
        let alive_until = now + wanted.patience;
        match self.queue.iter_mut().find(|waiter| waiter.nonce == nonce) {
            Some(waiter) => waiter.alive_until = alive_until,
            None => self.queue.push_back(Waiter {
                nonce,
                take,
                since: now,
                alive_until,
            }),
        }
        let holders = self.holders.iter().map(|holder| holder.expires_at);
        let first = self.first().into_iter().map(|waiter| waiter.alive_until);
        let earliest = holders.chain(first).min().unwrap_or(alive_until);
        Err(Denied::Busy(earliest.since(now)))
    }

    /// The first waiter whose claim can be granted. Those that want more permits than there are now stay
    /// in the queue until their next request, which is refused.
    fn first(&self) -> Option<&Waiter> {
        self.queue.iter().find(|waiter| waiter.take <= self.of)
    }

    fn knows(&self, nonce: Nonce) -> bool {
        let holders = self.holders.iter().map(|holder| holder.nonce);
        let waiters = self.queue.iter().map(|waiter| waiter.nonce);
        holders.chain(waiters).any(|known| known == nonce)
    }

    fn has(&self, take: u32) -> bool {
        let used: u64 = self
            .holders
            .iter()
            .map(|holder| u64::from(holder.take))
            .sum();
        used + u64::from(take) <= u64::from(self.of)
    }

    /// Removes expired holders, and expired waiters up to the first one. Those behind it cost no time
    /// before they are first.
    fn expire(&mut self, now: Moment) {
        self.holders.retain(|holder| holder.expires_at > now);
        let (of, mut is_ahead) = (self.of, true);
        self.queue.retain(|waiter| {
            let is_alive = waiter.alive_until > now;
            let stays = !is_ahead || is_alive;
            is_ahead &= !(is_alive && waiter.take <= of);
            stays
        });
    }
}
