//! What is counted of the distributed locks: who waited, who held for how long, what was lost.
//!
//! Waiting for a lock is otherwise invisible: requests just become slow.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{SECONDS, StrategyLabel};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    strategy: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    strategy: &'static str,
    reason: &'static str,
}

type Seconds<Labels> = Family<Labels, Histogram, fn() -> Histogram>;

/// The locks' part of the metrics.
#[derive(Debug)]
pub struct LockMetrics {
    wait_seconds: Seconds<OutcomeLabels>,
    hold_seconds: Seconds<StrategyLabel>,
    lost: Family<ReasonLabels, Counter>,
    dropped: Family<StrategyLabel, Counter>,
    writes_refused: Family<ReasonLabels, Counter>,
}

impl LockMetrics {
    /// All at zero, in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let wait_seconds: Seconds<OutcomeLabels> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        registry.register_with_unit(
            "stock_lock_wait",
            "Time from asking for a lock to having it, or to giving up, by outcome",
            Unit::Seconds,
            wait_seconds.clone(),
        );
        let hold_seconds: Seconds<StrategyLabel> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        registry.register_with_unit(
            "stock_lock_hold",
            "Time for which a lock was held",
            Unit::Seconds,
            hold_seconds.clone(),
        );
        let lost = Family::default();
        registry.register(
            "stock_locks_lost",
            "Locks lost before they were released, by reason",
            Family::clone(&lost),
        );
        let dropped = Family::default();
        registry.register(
            "stock_lock_guards_dropped",
            "Locks that were dropped instead of released",
            Family::clone(&dropped),
        );
        let writes_refused = Family::default();
        registry.register(
            "stock_writes_refused",
            "Writes of an outdated read that changed no row: its version had moved on, or a later \
             holder of the lock had left its fence",
            Family::clone(&writes_refused),
        );
        Self {
            wait_seconds,
            hold_seconds,
            lost,
            dropped,
            writes_refused,
        }
    }

    /// A request for a lock ended, with or without the lock, after `waited`.
    pub fn waited(&self, strategy: &'static str, outcome: &'static str, waited: Duration) {
        self.wait_seconds
            .get_or_create(&OutcomeLabels { strategy, outcome })
            .observe(waited.as_secs_f64());
    }

    /// A lock was held for so long.
    pub fn held(&self, strategy: &'static str, held: Duration) {
        self.hold_seconds
            .get_or_create(&StrategyLabel { strategy })
            .observe(held.as_secs_f64());
    }

    /// A lock was lost.
    pub fn lost(&self, strategy: &'static str, reason: &'static str) {
        self.lost
            .get_or_create(&ReasonLabels { strategy, reason })
            .inc();
    }

    /// A lock was dropped.
    pub fn dropped(&self, strategy: &'static str) {
        self.dropped
            .get_or_create(&StrategyLabel { strategy })
            .inc();
    }

    /// A conditional write changed no row.
    pub fn write_refused(&self, strategy: &'static str, reason: &'static str) {
        self.writes_refused
            .get_or_create(&ReasonLabels { strategy, reason })
            .inc();
    }
}
