//! Counts the events of the lock managers by strategy.

use std::sync::Arc;
use std::time::Duration;

use stocklock_locks::LostReason;
use stocklock_locks::metrics::{LockHooks, NotAcquired};

use crate::metrics::Metrics;

/// Passes a lock manager's events to the replica's metrics.
#[derive(Debug)]
pub(super) struct LockMeter(Arc<Metrics>);

impl LockMeter {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self(metrics)
    }
}

impl LockHooks for LockMeter {
    fn acquired(&self, strategy: &'static str, waited: Duration, contended: bool) {
        let outcome = if contended { "contended" } else { "free" };
        self.0.locks.waited(strategy, outcome, waited);
    }

    fn not_acquired(&self, strategy: &'static str, waited: Duration, why: NotAcquired) {
        let outcome = match why {
            NotAcquired::WaitLimit => "wait-limit",
            NotAcquired::Unavailable => "unavailable",
            NotAcquired::Abandoned => "abandoned",
            NotAcquired::Shutdown => "shutdown",
        };
        self.0.locks.waited(strategy, outcome, waited);
    }

    fn released(&self, strategy: &'static str, held: Duration) {
        self.0.locks.held(strategy, held);
    }

    fn lost(&self, strategy: &'static str, held: Duration, reason: LostReason) {
        self.0.locks.held(strategy, held);
        self.0.locks.lost(strategy, reason.name());
    }

    fn guard_dropped(&self, strategy: &'static str) {
        self.0.locks.dropped(strategy);
    }
}
