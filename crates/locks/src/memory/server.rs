//! The model's server, and what can be done to it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use crate::clock::Clock;
use crate::nonce::Nonce;
use crate::table::Table;
use crate::token::Token;

/// A lock server in memory; clones are the same one.
#[derive(Debug, Clone)]
pub struct MemoryServer(pub(super) Arc<Server>);

/// A kind of request, to name the one that a fault is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// An attempt to acquire.
    Acquire,
    /// A batch of renewals.
    Renew,
    /// A release.
    Release,
    /// Whether a lock is somebody's.
    Verify,
    /// Whether the server answers.
    Ping,
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Fate {
    Answered,
    RequestLost,
    /// It arrives when the server is told so.
    Delayed,
    AnswerLost,
}

#[derive(Debug)]
pub(super) struct Server {
    pub(super) table: Table,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) source: Arc<str>,
    /// What was given up before it arrived, and takes nothing when it does.
    given_up: Mutex<HashSet<Nonce>>,
    faults: Mutex<Faults>,
    paused: watch::Sender<bool>,
    pub(super) delivered: Notify,
}

#[derive(Debug, Default)]
struct Faults {
    left: HashMap<(Question, Fate), u32>,
    wake_ups_lost: u32,
}

impl MemoryServer {
    /// A server on this clock, with nothing held.
    #[must_use]
    pub fn new(clock: impl Clock) -> Self {
        Self(Arc::new(Server {
            table: Table::default(),
            clock: Arc::new(clock),
            source: format!("memory:{}", Nonce::random()).into(),
            given_up: Mutex::default(),
            faults: Mutex::default(),
            paused: watch::Sender::new(false),
            delivered: Notify::new(),
        }))
    }

    /// Stands still: requests arrive, and are carried out after [`resume`](Self::resume).
    pub fn pause(&self) {
        self.0.paused.send_replace(true);
    }

    /// Goes on.
    pub fn resume(&self) {
        self.0.paused.send_replace(false);
    }

    /// Loses the next `times` requests of a kind before they arrive.
    pub fn lose_requests(&self, question: Question, times: u32) {
        let fault = (question, Fate::RequestLost);
        self.0.faults().left.insert(fault, times);
    }

    /// Keeps the next `times` requests of a kind on their way until [`deliver`](Self::deliver);
    /// later ones overtake them.
    pub fn delay_requests(&self, question: Question, times: u32) {
        let fault = (question, Fate::Delayed);
        self.0.faults().left.insert(fault, times);
    }

    /// Lets the requests arrive that are delayed by now.
    pub fn deliver(&self) {
        self.0.delivered.notify_waiters();
    }

    /// Carries out the next `times` requests of a kind, and loses the answers.
    pub fn lose_answers(&self, question: Question, times: u32) {
        let fault = (question, Fate::AnswerLost);
        self.0.faults().left.insert(fault, times);
    }

    /// Loses the next `times` wake-ups after a release.
    pub fn lose_wake_ups(&self, times: u32) {
        self.0.faults().wake_ups_lost = times;
    }

    /// Ends the lease of a lock now, or lets it be evicted.
    pub fn expire(&self, name: &str) {
        self.0.table.expire(name);
    }

    /// Forgets who holds what, as a restart without persistence does.
    pub fn forget_all(&self) {
        self.0.table.clear();
    }

    /// How many locks are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.table.len(self.0.clock.now())
    }

    /// The token of who holds a lock.
    #[must_use]
    pub fn holder(&self, name: &str) -> Option<Token> {
        let holder = self.0.table.holder(self.0.clock.now(), name);
        holder.map(|(_, token)| token)
    }
}

impl Server {
    /// Completes while the server is not paused.
    pub(super) async fn running(&self) {
        let mut paused = self.paused.subscribe();
        // The sender is our own.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    /// Remembers that an acquisition was given up.
    pub(super) fn give_up(&self, nonce: Nonce) {
        self.given_up().insert(nonce);
    }

    pub(super) fn is_given_up(&self, nonce: Nonce) -> bool {
        self.given_up().contains(&nonce)
    }

    /// What becomes of the next request of a kind.
    pub(super) fn fate(&self, question: Question) -> Fate {
        let mut faults = self.faults();
        for fate in [Fate::RequestLost, Fate::Delayed, Fate::AnswerLost] {
            if let Some(left @ 1..) = faults.left.get_mut(&(question, fate)) {
                *left -= 1;
                return fate;
            }
        }
        Fate::Answered
    }

    pub(super) fn loses_wake_up(&self) -> bool {
        let mut faults = self.faults();
        let loses = faults.wake_ups_lost > 0;
        faults.wake_ups_lost = faults.wake_ups_lost.saturating_sub(1);
        loses
    }

    fn given_up(&self) -> MutexGuard<'_, HashSet<Nonce>> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
