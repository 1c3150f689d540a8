//! The metrics of the distributed locks: waits, holds, attempts, renewals, losses. Without them, waiting for a lock only
//! shows as slow requests.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use stocklock_locks::LostReason;
use stocklock_locks::metrics::{AttemptOutcome, LockHooks, NotAcquired};

use super::{Counters, Labels, Seconds, counters, observe, seconds};

/// One gauge for each strategy.
type Gauges = Family<Labels<1>, Gauge>;

/// The metrics of the distributed locks, by strategy. Clones count together.
#[derive(Debug, Clone)]
pub struct LockMetrics {
    waiters: Gauges,
    held: Gauges,
    attempts: Counters<Labels<2>>,
    renewals: Counters<Labels<2>>,
    wait_seconds: Seconds<Labels<2>>,
    hold_seconds: Seconds<Labels<1>>,
    lost: Counters<Labels<2>>,
    guards_dropped: Counters<Labels<1>>,
}

impl LockMetrics {
    /// All metrics at zero, in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let mut gauges = |name, help| {
            let gauges = Gauges::default();
            registry.register(name, help, gauges.clone());
            gauges
        };
        Self {
            waiters: gauges(
                "stock_lock_waiters",
                "Deductions of this replica that wait for a lock now",
            ),
            held: gauges("stock_locks_held", "Locks that this replica holds now"),
            attempts: counters(
                registry,
                "stock_lock_attempts",
                "Requests to a lock server to acquire a lock, by outcome",
            ),
            renewals: counters(
                registry,
                "stock_lock_renewals",
                "Renewals of held locks, by outcome. One request renews up to 100 locks",
            ),
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

    /// The hooks of the manager of one strategy's locks. A request that renews locks has no label.
    pub(crate) fn of(&self, strategy: &'static str) -> StrategyLocks {
        // As in `Metrics::default`.
        for reason in [
            LostReason::Expired,
            LostReason::Stolen,
            LostReason::SessionExpired,
        ] {
            let labels = [("strategy", strategy), ("reason", reason.name())];
            let _ = self.lost.get_or_create(&labels);
        }
        StrategyLocks {
            strategy,
            metrics: self.clone(),
        }
    }

    fn waits_no_more(&self, strategy: &'static str, outcome: &'static str, waited: Duration) {
        let labels = [("strategy", strategy), ("outcome", outcome)];
        observe(&self.wait_seconds, &labels, waited);
        let waiters = &self.waiters;
        waiters.get_or_create(&[("strategy", strategy)]).dec();
    }
}

/// The metrics of the locks of one strategy.
#[derive(Debug)]
pub(crate) struct StrategyLocks {
    strategy: &'static str,
    metrics: LockMetrics,
}

impl LockHooks for StrategyLocks {
    fn started(&self, strategy: &'static str) {
        let waiters = &self.metrics.waiters;
        waiters.get_or_create(&[("strategy", strategy)]).inc();
    }

    fn acquired(&self, strategy: &'static str, waited: Duration, contended: bool) {
        let outcome = if contended { "contended" } else { "free" };
        self.metrics.waits_no_more(strategy, outcome, waited);
        let held = &self.metrics.held;
        held.get_or_create(&[("strategy", strategy)]).inc();
    }

    fn not_acquired(&self, strategy: &'static str, waited: Duration, why: NotAcquired) {
        self.metrics.waits_no_more(strategy, why.name(), waited);
    }

    fn attempted(&self, strategy: &'static str, outcome: AttemptOutcome) {
        let labels = [("strategy", strategy), ("outcome", outcome.name())];
        self.metrics.attempts.get_or_create(&labels).inc();
    }

    fn renewed(&self, locks: usize, _: Duration, answered: bool) {
        let outcome = if answered { "answered" } else { "failed" };
        let labels = [("strategy", self.strategy), ("outcome", outcome)];
        let renewals = self.metrics.renewals.get_or_create(&labels);
        renewals.inc_by(locks as u64);
    }

    fn released(&self, strategy: &'static str, held: Duration) {
        let labels = [("strategy", strategy)];
        observe(&self.metrics.hold_seconds, &labels, held);
        self.metrics.held.get_or_create(&labels).dec();
    }

    fn lost(&self, strategy: &'static str, held: Duration, reason: LostReason) {
        self.released(strategy, held);
        let labels = [("strategy", strategy), ("reason", reason.name())];
        self.metrics.lost.get_or_create(&labels).inc();
    }

    fn guard_dropped(&self, strategy: &'static str) {
        let labels = [("strategy", strategy)];
        self.metrics.guards_dropped.get_or_create(&labels).inc();
    }
}
