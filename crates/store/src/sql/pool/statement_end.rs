//! When a database in this process ends a statement. Servers know their limits themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// When the statement that runs on a connection must end. The database asks while it works on it.
#[derive(Debug)]
pub(crate) struct StatementEnd {
    limit: Duration,
    origin: Instant,
    /// Milliseconds after `origin`.
    at: AtomicU64,
}

/// No statement runs.
const NEVER: u64 = u64::MAX;

impl StatementEnd {
    /// For a connection whose statements may each take this long.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            limit,
            origin: Instant::now(),
            at: AtomicU64::new(NEVER),
        }
    }

    /// A statement is sent.
    pub(super) fn begin(&self) {
        self.end_at(millis(self.origin.elapsed() + self.limit));
    }

    /// The statement was answered.
    pub(super) fn answered(&self) {
        self.end_at(NEVER);
    }

    /// No request waits for the answer.
    pub(super) fn end_now(&self) {
        self.end_at(0);
    }

    /// Whether the database must end the statement now.
    pub(crate) fn is_over(&self) -> bool {
        millis(self.origin.elapsed()) >= self.at.load(Ordering::Relaxed)
    }

    fn end_at(&self, at: u64) {
        self.at.store(at, Ordering::Relaxed);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}
