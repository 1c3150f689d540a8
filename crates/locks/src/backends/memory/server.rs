//! The server of the model, and its faults.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::backend::Claim;
use crate::claims::LockView;
use crate::shared::clock::Clock;
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;
use crate::shared::numbers::NumberTable;
use crate::shared::periods::PeriodTable;
use crate::shared::revoked::Revoked;
use crate::shared::shares::Shares;
use crate::shared::table::Table;
use crate::shared::token::Token;

/// A lock server in memory. Clones refer to the same server.
#[derive(Debug, Clone)]
pub struct MemoryServer(pub(super) Arc<Server>);

/// A kind of request. It selects the requests that a fault affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Question {
    /// An attempt to acquire a lock.
    Acquire,
    /// A batch of renewals.
    Renew,
    /// The release of a lock.
    Release,
    /// The reduction of a claim.
    Reduce,
    /// The start of a period.
    Period,
    /// The change of a number.
    Change,
    /// A look at a number, or at the holders of a lock.
    Read,
    /// The removal of a holder by an operator.
    Revoke,
    /// The check whether a client holds a lock.
    Verify,
    /// The check whether the server answers.
    Ping,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Answered,
    RequestLost,
    /// The server answers with an error, and does not execute the request.
    Refused,
    /// The request arrives when the test calls [`MemoryServer::deliver`].
    Delayed,
    AnswerLost,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) table: Table,
    pub(super) shares: Shares,
    pub(super) revoked: Revoked,
    pub(super) periods: PeriodTable,
    pub(super) numbers: NumberTable,
    pub(super) clock: Arc<dyn Clock>,
    /// Locked while a request is executed: requests are executed one at a time.
    executing: Mutex<()>,
    /// Every client, to cause renewals.
    pub(super) managers: Managers,
    /// The id under which tokens are issued. Lost with the data.
    source: Mutex<Option<Arc<str>>>,
    /// The acquisitions that were released before their request arrived. That request gets no lock.
    tombstones: Mutex<HashSet<Nonce>>,
    faults: Mutex<Faults>,
    paused: watch::Sender<bool>,
    pub(super) delivered: Notify,
}

#[derive(Debug, Default)]
struct Faults {
    remaining: HashMap<(Question, Fate), u32>,
    /// How many requests were sent.
    requests: HashMap<Question, u32>,
    wake_ups_lost: u32,
}

impl MemoryServer {
    /// Creates a server without locks, on this clock.
    #[must_use]
    pub fn new(clock: impl Clock) -> Self {
        Self(Arc::new(Server {
            table: Table::default(),
            shares: Shares::default(),
            revoked: Revoked::default(),
            periods: PeriodTable::default(),
            numbers: NumberTable::default(),
            clock: Arc::new(clock),
            executing: Mutex::default(),
            managers: Managers::default(),
            source: Mutex::default(),
            tombstones: Mutex::default(),
            faults: Mutex::default(),
            paused: watch::Sender::new(false),
            delivered: Notify::new(),
        }))
    }

    /// Pauses the server. Requests still arrive, and are executed after [`resume`](Self::resume).
    pub fn pause(&self) {
        self.0.paused.send_replace(true);
    }

    /// Resumes the server.
    pub fn resume(&self) {
        self.0.paused.send_replace(false);
    }

    /// Loses the next `times` requests of this kind before they arrive.
    pub fn lose_requests(&self, question: Question, times: u32) {
        let fault = (question, Fate::RequestLost);
        self.0.faults().remaining.insert(fault, times);
    }

    /// Refuses the next `times` requests of this kind, like a server that is full or read-only.
    pub fn refuse_requests(&self, question: Question, times: u32) {
        let fault = (question, Fate::Refused);
        self.0.faults().remaining.insert(fault, times);
    }

    /// Returns how many requests of this kind all clients have sent.
    #[must_use]
    pub fn requests(&self, question: Question) -> u32 {
        let faults = self.0.faults();
        faults.requests.get(&question).copied().unwrap_or_default()
    }

    /// Delays the next `times` requests of this kind until [`deliver`](Self::deliver). Later
    /// requests overtake them.
    pub fn delay_requests(&self, question: Question, times: u32) {
        let fault = (question, Fate::Delayed);
        self.0.faults().remaining.insert(fault, times);
    }

    /// Delivers all delayed requests.
    pub fn deliver(&self) {
        self.0.delivered.notify_waiters();
    }

    /// Executes the next `times` requests of this kind, and loses their answers.
    pub fn lose_answers(&self, question: Question, times: u32) {
        let fault = (question, Fate::AnswerLost);
        self.0.faults().remaining.insert(fault, times);
    }

    /// Loses the next `times` wake-ups of waiters for locks and numbers, and as many for permits.
    pub fn lose_wake_ups(&self, times: u32) {
        self.0.faults().wake_ups_lost = times;
        self.0.shares.lose_wake_ups(times);
    }

    /// Removes a lock, as if its lease had expired or it had been evicted.
    pub fn expire(&self, name: &str) {
        self.0.table.expire(name);
        self.0.shares.expire(name);
    }

    /// Forgets all data, like a restart without persistence: the locks, the source of their tokens,
    /// which acquisitions were released, the periods and the numbers. Tokens still grow, because they come from
    /// the clock.
    pub fn forget_all(&self) {
        self.0.execute(|server| {
            server.table.clear();
            server.shares.clear();
            server.revoked.clear();
            server.periods.clear();
            server.numbers.clear();
            server.tombstones().clear();
            *server.stored_source() = None;
        });
    }

    /// Makes all managers renew their locks now, as after a reconnect.
    pub fn cause_renewals(&self) {
        self.0.managers.nudge_all();
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        let now = self.0.clock.now();
        self.0.table.len(now) + self.0.shares.len(now)
    }

    /// Returns how many numbers, latches and gates of barriers exist.
    #[must_use]
    pub fn stored_numbers(&self) -> usize {
        self.0.numbers.len(self.0.clock.now())
    }

    /// Returns the token of the current holder of a lock.
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<Token> {
        let holder = self.0.table.holder(self.0.clock.now(), name);
        holder.map(|(_, token)| token)
    }
}

impl Server {
    pub(super) fn execute<T>(&self, request: impl FnOnce(&Self) -> T) -> T {
        let executing = &self.executing;
        let _executing = executing.lock().unwrap_or_else(PoisonError::into_inner);
        request(self)
    }

    pub(super) fn inspect(&self, name: &str, claim: Claim) -> LockView {
        let now = self.clock.now();
        match claim {
            Claim::Exclusive => self.table.inspect(now, name),
            Claim::Permits { .. } => self.shares.inspect(now, name),
        }
    }

    pub(super) async fn wait_until_running(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    /// Returns the id under which tokens are issued. A client without a fixed id gives its candidate
    /// only to a server that has none.
    pub(super) fn source(&self, candidate: Arc<str>, is_fixed: bool) -> Arc<str> {
        let mut source = self.stored_source();
        if is_fixed {
            *source = Some(Arc::clone(&candidate));
        }
        Arc::clone(source.get_or_insert(candidate))
    }

    fn stored_source(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        self.source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add_tombstone(&self, nonce: Nonce) {
        self.tombstones().insert(nonce);
    }

    pub(super) fn has_tombstone(&self, nonce: Nonce) -> bool {
        self.tombstones().contains(&nonce)
    }

    pub(super) fn fate(&self, question: Question) -> Fate {
        let mut faults = self.faults();
        *faults.requests.entry(question).or_default() += 1;
        for fate in [
            Fate::RequestLost,
            Fate::Refused,
            Fate::Delayed,
            Fate::AnswerLost,
        ] {
            if let Some(remaining @ 1..) = faults.remaining.get_mut(&(question, fate)) {
                *remaining -= 1;
                return fate;
            }
        }
        Fate::Answered
    }

    pub(super) fn lose_wake_up(&self) -> bool {
        let mut faults = self.faults();
        let lose = faults.wake_ups_lost > 0;
        faults.wake_ups_lost = faults.wake_ups_lost.saturating_sub(1);
        lose
    }

    fn tombstones(&self) -> MutexGuard<'_, HashSet<Nonce>> {
        self.tombstones
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
