//! What a back end without a server stores, as one request after the other finds it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::claims::{Claim, LockView, Release, ReleaseRequest, Renewal, Renewed, Request};
use crate::shared::clock::{Clock, Moment};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::lock::lock;
use crate::shared::nonce::Nonce;
use crate::shared::numbers::{Changed, NumberRequest, NumberTable};
use crate::shared::periods::PeriodTable;
use crate::shared::revoked::Revoked;
use crate::shared::shares::{Denied, Shares, Wanted};
use crate::shared::table::Table;
use crate::shared::token::Token;
use crate::shared::topics::Listener;

#[derive(Debug)]
pub struct Tables {
    pub(crate) table: Table,
    pub(crate) shares: Shares,
    revoked: Revoked,
    pub(crate) periods: PeriodTable,
    pub(crate) numbers: NumberTable,
    pub(crate) clock: Arc<dyn Clock>,
    /// The id under which tokens are issued.
    source: Mutex<Option<Arc<str>>>,
    /// The acquisitions that were released before their request arrived. That request gets no lock.
    tombstones: Mutex<HashSet<Nonce>>,
    /// How many of the next wake-ups for locks and numbers are lost.
    lost_wake_ups: AtomicU32,
}

impl Tables {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            table: Table::default(),
            shares: Shares::default(),
            revoked: Revoked::default(),
            periods: PeriodTable::default(),
            numbers: NumberTable::default(),
            clock,
            source: Mutex::default(),
            tombstones: Mutex::default(),
            lost_wake_ups: AtomicU32::new(0),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Acquires a lock, and returns its token and the id under which it is issued. A client without a fixed id
    /// gives its candidate only to a server that has none. `None` if the acquisition was released before.
    pub(crate) fn acquire(
        &self,
        request: &Request,
        patience: Duration,
        candidate: Arc<str>,
        is_fixed: bool,
    ) -> Option<Result<(Token, Arc<str>), Denied>> {
        let Request {
            name, nonce, lease, ..
        } = request;
        let (nonce, lease) = (*nonce, *lease);
        if lock(&self.tombstones).contains(&nonce) {
            return None;
        }
        let acquired = match request.claim {
            Claim::Exclusive => {
                let acquired = self.table.acquire(self.now(), name, nonce, lease);
                acquired.map_err(Denied::Busy)
            }
            Claim::Permits { take, of } => {
                let wanted = Wanted {
                    nonce,
                    take,
                    of,
                    lease,
                    patience,
                };
                self.shares.acquire(self.now(), name, wanted)
            }
        };
        Some(acquired.map(|token| {
            let mut source = lock(&self.source);
            if is_fixed {
                *source = Some(Arc::clone(&candidate));
            }
            (token, Arc::clone(source.get_or_insert(candidate)))
        }))
    }

    /// Waits for a chance of this request.
    pub(crate) fn listen(&self, request: &Request) -> Listener {
        match request.claim {
            Claim::Exclusive => self.table.freed.listen(&request.name),
            Claim::Permits { .. } => self.shares.turns.listen(&request.nonce.to_string()),
        }
    }

    pub(crate) fn renew(&self, renewals: &[Renewal]) -> Vec<Renewed> {
        let now = self.now();
        let renew = |renewal: &Renewal| {
            let is_held = match renewal.claim {
                Claim::Exclusive => self.table.renew(now, renewal),
                Claim::Permits { .. } => self.shares.renew(now, renewal),
            };
            self.revoked.renewed(now, renewal, is_held)
        };
        renewals.iter().map(renew).collect()
    }

    /// With `buries`, a late request to acquire the lock takes nothing.
    pub(crate) fn release(&self, request: &ReleaseRequest, buries: bool) -> Release {
        let ReleaseRequest {
            name, nonce, claim, ..
        } = request;
        let was_held = self.free(name, *nonce, *claim);
        if buries && (request.unclear || !was_held) {
            lock(&self.tombstones).insert(*nonce);
        }
        if was_held {
            self.wake(name, *claim);
        }
        self.revoked.released(self.now(), *nonce, was_held)
    }

    fn free(&self, name: &str, nonce: Nonce, claim: Claim) -> bool {
        match claim {
            Claim::Exclusive => self.table.release(self.now(), name, nonce),
            Claim::Permits { .. } => self.shares.release(self.now(), name, nonce),
        }
    }

    /// Wakes the waiters for a lock that is free now. Permits wake their waiters themselves.
    fn wake(&self, name: &str, claim: Claim) {
        if claim == Claim::Exclusive && !self.loses_wake_up() {
            self.table.freed.publish(name);
        }
    }

    pub(crate) fn lose_wake_ups(&self, times: u32) {
        self.lost_wake_ups.store(times, Ordering::SeqCst);
        self.shares.lose_wake_ups(times);
    }

    fn loses_wake_up(&self) -> bool {
        let one_less = |times: u32| times.checked_sub(1);
        let lost = &self.lost_wake_ups;
        lost.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
            .is_ok()
    }

    pub(crate) fn reduce(&self, name: &str, nonce: Nonce, keep: u32) -> Option<LostReason> {
        let is_held = self.shares.reduce(self.now(), name, nonce, keep);
        (!is_held).then(|| self.revoked.reason(self.now(), nonce))
    }

    pub(crate) fn verify(&self, name: &str, nonce: Nonce) -> Option<LostReason> {
        let holder = self.table.holder(self.now(), name);
        let is_holder = holder.is_some_and(|(holder, _)| holder == nonce);
        let is_held = is_holder || self.shares.holds(self.now(), name, nonce);
        (!is_held).then(|| self.revoked.reason(self.now(), nonce))
    }

    pub(crate) fn inspect(&self, name: &str, claim: Claim) -> LockView {
        match claim {
            Claim::Exclusive => self.table.inspect(self.now(), name),
            Claim::Permits { .. } => self.shares.inspect(self.now(), name),
        }
    }

    /// Takes the lock away from this holder, and remembers that.
    pub(crate) fn revoke(&self, name: &str, nonce: Nonce, claim: Claim, buries: bool) -> bool {
        let (now, view) = (self.now(), self.inspect(name, claim));
        let free = || self.free(name, nonce, claim);
        if self.revoked.take_away(now, &view, nonce, free) {
            if buries {
                lock(&self.tombstones).insert(nonce);
            }
            self.wake(name, claim);
        }
        self.revoked.contains(now, nonce)
    }

    /// Changes a number, and remembers the answer for this long.
    pub(crate) fn change(
        &self,
        request: &NumberRequest,
        remember: Duration,
    ) -> Result<Changed, BackendError> {
        let changed = self.numbers.change(self.now(), request, remember);
        if !self.loses_wake_up() {
            self.numbers.changed.publish(&request.key.topic());
        }
        changed
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    pub(crate) fn held(&self) -> usize {
        self.table.len(self.now()) + self.shares.len(self.now())
    }

    pub(crate) fn clear(&self) {
        self.table.clear();
        self.shares.clear();
        self.revoked.clear();
        self.periods.clear();
        self.numbers.clear();
        lock(&self.tombstones).clear();
        *lock(&self.source) = None;
    }
}
