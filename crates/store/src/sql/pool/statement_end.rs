//! When a database in this process ends a statement. Servers know their limits themselves.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// When the statement that runs on a connection must end. The database asks while it works on it.
#[derive(Debug)]
pub(crate) struct StatementEnd {
    limit: Duration,
    /// `None`: no statement runs.
    at: Mutex<Option<Instant>>,
}

impl StatementEnd {
    /// For a connection whose statements may each take this long.
    pub(crate) fn new(limit: Duration) -> Self {
        let at = Mutex::default();
        Self { limit, at }
    }

    /// A statement is sent.
    pub(super) fn begin(&self) {
        *self.at.lock() = Some(Instant::now() + self.limit);
    }

    /// The statement was answered.
    pub(super) fn answered(&self) {
        *self.at.lock() = None;
    }

    /// No request waits for the answer.
    pub(super) fn end_now(&self) {
        *self.at.lock() = Some(Instant::now());
    }

    /// Whether the database must end the statement now.
    pub(crate) fn is_over(&self) -> bool {
        let at = *self.at.lock();
        at.is_some_and(|at| Instant::now() >= at)
    }
}
