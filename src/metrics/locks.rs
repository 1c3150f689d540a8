//! The metrics of the distributed locks: waits, holds, losses. Without them, waiting for a lock only
//! shows as slow requests.

use std::time::Duration;

use prometheus_client::registry::Registry;

use super::{Counters, Labels, Seconds, counters, seconds};

/// The metrics of the distributed locks.
#[derive(Debug)]
pub struct LockMetrics {
    wait_seconds: Seconds<Labels<2>>,
    hold_seconds: Seconds<Labels<1>>,
    lost: Counters<Labels<2>>,
    dropped: Counters<Labels<1>>,
    writes_refused: Counters<Labels<2>>,
}

impl LockMetrics {
    /// All metrics at zero, in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        Self {
            wait_seconds: seconds(
                registry,
                "stock_lock_wait",
                "Time from requesting a lock to acquiring it or giving up, by outcome",
            ),
            hold_seconds: seconds(
                registry,
                "stock_lock_hold",
                "Time for which a lock was held",
            ),
            lost: counters(
                registry,
                "stock_locks_lost",
                "Locks lost before they were released, by reason",
            ),
            dropped: counters(
                registry,
                "stock_lock_guards_dropped",
                "Locks whose guard was dropped instead of released",
            ),
            writes_refused: counters(
                registry,
                "stock_writes_refused",
                "Conditional writes that changed no row, because the version had moved or a later \
                 lock holder had left its fence",
            ),
        }
    }

    /// A request for a lock ended after `waited`, with or without the lock.
    pub fn waited(&self, strategy: &'static str, outcome: &'static str, waited: Duration) {
        self.wait_seconds
            .get_or_create(&[("strategy", strategy), ("outcome", outcome)])
            .observe(waited.as_secs_f64());
    }

    /// A lock was held for this time.
    pub fn held(&self, strategy: &'static str, held: Duration) {
        self.hold_seconds
            .get_or_create(&[("strategy", strategy)])
            .observe(held.as_secs_f64());
    }

    /// A lock was lost.
    pub fn lost(&self, strategy: &'static str, reason: &'static str) {
        let labels = [("strategy", strategy), ("reason", reason)];
        self.lost.get_or_create(&labels).inc();
    }

    /// The guard of a lock was dropped instead of released.
    pub fn dropped(&self, strategy: &'static str) {
        let labels = [("strategy", strategy)];
        self.dropped.get_or_create(&labels).inc();
    }

    /// A conditional write changed no row.
    pub fn write_refused(&self, strategy: &'static str, reason: &'static str) {
        let labels = [("strategy", strategy), ("reason", reason)];
        self.writes_refused.get_or_create(&labels).inc();
    }
}
