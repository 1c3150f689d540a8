//! The server of the model, and its faults.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, watch};

use super::tables::Tables;
use crate::shared::clock::Clock;
use crate::shared::lock::lock;
use crate::shared::managers::Managers;

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

/// A lock server in memory. Clones refer to the same server.
#[derive(Debug, Clone)]
pub struct MemoryServer(pub(super) Arc<Server>);

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
    pub(super) tables: Tables,
    /// Every client, to cause renewals.
    pub(super) managers: Managers,
    faults: Mutex<Faults>,
    paused: watch::Sender<bool>,
    pub(super) delivered: Notify,
}

#[derive(Debug, Default)]
struct Faults {
    remaining: HashMap<(Question, Fate), u32>,
    requests: HashMap<Question, u32>,
}

impl MemoryServer {
    /// Creates a server without locks, on this clock.
    #[must_use]
    pub fn new(clock: impl Clock) -> Self {
        Self(Arc::new(Server::new(Arc::new(clock))))
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
        self.cause(question, Fate::RequestLost, times);
    }

    /// Refuses the next `times` requests of this kind, like a server that is full or read-only.
    pub fn refuse_requests(&self, question: Question, times: u32) {
        self.cause(question, Fate::Refused, times);
    }

    fn cause(&self, question: Question, fate: Fate, times: u32) {
        lock(&self.0.faults)
            .remaining
            .insert((question, fate), times);
    }

    /// Returns how many requests of this kind all clients have sent.
    #[must_use]
    pub fn requests(&self, question: Question) -> u32 {
        let faults = lock(&self.0.faults);
        faults.requests.get(&question).copied().unwrap_or_default()
    }

    /// Delays the next `times` requests of this kind until [`deliver`](Self::deliver). Later
    /// requests overtake them.
    pub fn delay_requests(&self, question: Question, times: u32) {
        self.cause(question, Fate::Delayed, times);
    }

    /// Delivers all delayed requests.
    pub fn deliver(&self) {
        self.0.delivered.notify_waiters();
    }

    /// Executes the next `times` requests of this kind, and loses their answers.
    pub fn lose_answers(&self, question: Question, times: u32) {
        self.cause(question, Fate::AnswerLost, times);
    }

    /// Loses the next `times` wake-ups of waiters.
    pub fn lose_wake_ups(&self, times: u32) {
        self.0.tables.lose_wake_ups(times);
    }

    /// Removes a lock, as if its lease had expired or it had been evicted.
    pub fn expire(&self, name: &str) {
        self.0.tables.expire(name);
    }

    /// Forgets all data, like a restart without persistence: the locks, the source of their tokens,
    /// which acquisitions were released, the periods and the numbers. Tokens still grow, because they come from
    /// the clock.
    pub fn forget_all(&self) {
        self.0.tables.clear();
    }

    /// Makes all managers renew their locks now, as after a reconnect.
    pub fn cause_renewals(&self) {
        self.0.managers.nudge_all();
    }

    /// Returns the number of held locks, with the clients that hold permits or wait for them.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.tables.held()
    }

    /// Returns how many numbers, latches and gates of barriers exist.
    #[must_use]
    pub fn stored_numbers(&self) -> usize {
        self.0.tables.stored_numbers()
    }
}

impl Server {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            tables: Tables::new(clock),
            managers: Managers::default(),
            faults: Mutex::default(),
            paused: watch::Sender::new(false),
            delivered: Notify::new(),
        }
    }

    pub(super) async fn wait_until_running(&self) {
        let mut paused = self.paused.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _ = paused.wait_for(|paused| !paused).await;
    }

    pub(super) fn fate(&self, question: Question) -> Fate {
        let mut faults = lock(&self.faults);
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
}
