//! The metrics of the distributed locks: waits, holds, losses. Without them, waiting for a lock only
//! shows as slow requests.

use std::time::Duration;

use prometheus_client::registry::Registry;
use stocklock_locks::LostReason;
use stocklock_locks::metrics::{LockHooks, NotAcquired};

use super::{Counters, Labels, Seconds, counters, observe, seconds};

/// The metrics of the distributed locks, by strategy. Clones count together.
#[derive(Debug, Clone)]
pub struct LockMetrics {
    wait_seconds: Seconds<Labels<2>>,
    hold_seconds: Seconds<Labels<1>>,
    lost: Counters<Labels<2>>,
    guards_dropped: Counters<Labels<1>>,
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
            guards_dropped: counters(
                registry,
                "stock_lock_guards_dropped",
                "Locks whose guard was dropped instead of released",
            ),
        }
    }

    fn waited(&self, strategy: &'static str, outcome: &'static str, waited: Duration) {
        let labels = [("strategy", strategy), ("outcome", outcome)];
        observe(&self.wait_seconds, &labels, waited);
    }
}

impl LockHooks for LockMetrics {
    fn acquired(&self, strategy: &'static str, waited: Duration, contended: bool) {
        let outcome = if contended { "contended" } else { "free" };
        self.waited(strategy, outcome, waited);
    }

    fn not_acquired(&self, strategy: &'static str, waited: Duration, why: NotAcquired) {
        self.waited(strategy, why.name(), waited);
    }

    fn released(&self, strategy: &'static str, held: Duration) {
        observe(&self.hold_seconds, &[("strategy", strategy)], held);
    }

    fn lost(&self, strategy: &'static str, held: Duration, reason: LostReason) {
        self.released(strategy, held);
        let labels = [("strategy", strategy), ("reason", reason.name())];
        self.lost.get_or_create(&labels).inc();
    }

    fn guard_dropped(&self, strategy: &'static str) {
        let labels = [("strategy", strategy)];
        self.guards_dropped.get_or_create(&labels).inc();
    }
}
