//! A lock with one holder, or permits that several holders share.

use std::collections::VecDeque;
use std::time::Duration;

use crate::claims::{Attempt, Claim, Claimant, LockView, Request};
use crate::shared::clock::Moment;
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;

#[derive(Debug, Default)]
pub(super) struct Lock {
    /// The limit of the latest request.
    of: u32,
    pub(super) holders: Vec<Place>,
    /// The waiters for permits, in order of arrival.
    queue: VecDeque<Place>,
}

/// A holder or waiter.
#[derive(Debug)]
pub(super) struct Place {
    nonce: Nonce,
    pub(super) take: u32,
    /// Zero for a waiter.
    pub(super) token: Token,
    since: Moment,
    /// The end of the lease. Until then a waiter counts as alive.
    pub(super) until: Moment,
}

impl Lock {
    /// Returns the token: the next one, or that of an earlier request with this nonce. If too many permits are
    /// in use, or other clients are ahead, queues the request.
    pub(super) fn acquire(
        &mut self,
        now: Moment,
        request: &Request,
        next_token: Token,
        fallback: Duration,
    ) -> Result<Token, Attempt> {
        let nonce = request.nonce;
        let (take, of) = match request.claim {
            Claim::Exclusive => (1, 1),
            Claim::Permits { take, of } => (take, of),
        };
        self.holders.retain(|holder| holder.until > now);
        // A repeated request does not bring an old limit back.
        let mut known = self.holders.iter().chain(&self.queue);
        if known.all(|place| place.nonce != nonce) {
            self.of = of;
        }
        self.expire(now);
        let expires_at = now + request.lease;
        let mut holders = self.holders.iter_mut();
        if let Some(holder) = holders.find(|holder| holder.nonce == nonce) {
            holder.until = holder.until.max(expires_at);
            return Ok(holder.token);
        }
        if take > self.of {
            self.queue.retain(|waiter| waiter.nonce != nonce);
            return Err(Attempt::TooFewPermits { of: self.of });
        }
        let place = |token, until| Place {
            nonce,
            take,
            token,
            since: now,
            until,
        };
        let is_first = self.first().is_none_or(|first| first.nonce == nonce);
        if is_first && self.has(take) {
            self.queue.retain(|waiter| waiter.nonce != nonce);
            self.holders.push(place(next_token, expires_at));
            return Ok(next_token);
        }
        let alive_until = now + fallback.saturating_mul(3);
        if request.claim != Claim::Exclusive {
            match self.queue.iter_mut().find(|waiter| waiter.nonce == nonce) {
                Some(waiter) => waiter.until = alive_until,
                None => self.queue.push_back(place(Token::new(0), alive_until)),
            }
        }
        let ends = self.holders.iter().chain(self.first());
        let earliest = ends.map(|place| place.until).min();
        let rest = earliest.unwrap_or(alive_until).since(now);
        Err(Attempt::Busy {
            ask_again: Some(rest.min(fallback)),
        })
    }

    /// The first waiter whose claim can be granted. Those that want more permits than there are now stay
    /// in the queue until their next request, which is refused.
    fn first(&self) -> Option<&Place> {
        self.queue.iter().find(|waiter| waiter.take <= self.of)
    }

    fn has(&self, take: u32) -> bool {
        let used = self.holders.iter().map(|holder| u64::from(holder.take));
        used.sum::<u64>() + u64::from(take) <= u64::from(self.of)
    }

    /// The first waiter, if there are enough permits for it.
    pub(super) fn next(&self) -> Option<Nonce> {
        let first = self.first().filter(|first| self.has(first.take));
        first.map(|first| first.nonce)
    }

    /// Removes expired holders, and expired waiters up to the first one. Those behind it cost no time
    /// before they are first.
    pub(super) fn expire(&mut self, now: Moment) {
        self.holders.retain(|holder| holder.until > now);
        let (of, mut is_ahead) = (self.of, true);
        self.queue.retain(|waiter| {
            let is_alive = waiter.until > now;
            let stays = !is_ahead || is_alive;
            is_ahead &= !(is_alive && waiter.take <= of);
            stays
        });
    }

    /// Removes a holder or waiter. Returns whether it was a holder.
    pub(super) fn remove(&mut self, nonce: Nonce) -> bool {
        let before = self.holders.len();
        self.holders.retain(|holder| holder.nonce != nonce);
        self.queue.retain(|waiter| waiter.nonce != nonce);
        self.holders.len() < before
    }

    /// The holder with this nonce, if its lease has not ended.
    pub(super) fn holder(&mut self, now: Moment, nonce: Nonce) -> Option<&mut Place> {
        let mut holders = self.holders.iter_mut();
        holders.find(|holder| holder.nonce == nonce && holder.until > now)
    }

    pub(super) fn tokens(&self, now: Moment) -> impl Iterator<Item = Token> {
        let live = self.holders.iter().filter(move |holder| holder.until > now);
        live.map(|holder| holder.token)
    }

    pub(super) fn len(&self) -> usize {
        self.holders.len() + self.queue.len()
    }

    /// The holders and waiters, as operators see them.
    pub(super) fn view(&mut self, now: Moment) -> LockView {
        self.expire(now);
        let claimant = |place: &Place| Claimant {
            nonce: place.nonce,
            permits: place.take,
            token: (place.token > Token::new(0)).then_some(place.token),
            owner: None,
            age: Some(now.since(place.since)),
            expires_in: Some(place.until.since(now)),
        };
        LockView {
            holders: self.holders.iter().map(claimant).collect(),
            waiters: self.queue.iter().map(claimant).collect(),
            ..LockView::default()
        }
    }
}
