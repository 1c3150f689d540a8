//! The counters and histograms of one replica, in a registry of its own, so that replicas (and
//! tests) in one process do not count for each other.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use stocklock_core::ports::DeductionMetrics;

mod journal;
mod locks;

use journal::JournalWaiting;
pub use locks::LockMetrics;

/// Upper bounds in seconds, from a fast loopback commit to the deadline.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeductionLabels {
    strategy: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StrategyLabel {
    strategy: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StatusLabel {
    status: u16,
}

/// What one replica counts.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    deductions: Family<DeductionLabels, Counter>,
    deduct_seconds: Family<StrategyLabel, Histogram, fn() -> Histogram>,
    responses: Family<StatusLabel, Counter>,
    journal_waiting: Arc<JournalWaiting>,
    /// Those of the distributed locks.
    pub locks: LockMetrics,
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let deductions = Family::default();
        registry.register(
            "stock_deductions",
            "Deductions by strategy and outcome",
            Family::clone(&deductions),
        );
        let deduct_seconds: Family<StrategyLabel, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(SECONDS));
        registry.register_with_unit(
            "stock_deduct",
            "Time from a deduction's arrival to its answer",
            Unit::Seconds,
            Family::clone(&deduct_seconds),
        );
        let responses = Family::default();
        registry.register(
            "http_responses",
            "HTTP answers by status",
            Family::clone(&responses),
        );
        let journal_waiting = Arc::<JournalWaiting>::default();
        registry.register_collector(Box::new(Arc::clone(&journal_waiting)));
        let locks = LockMetrics::register(&mut registry);
        Self {
            registry,
            deductions,
            deduct_seconds,
            responses,
            journal_waiting,
            locks,
        }
    }

    /// Counts one HTTP answer.
    pub fn response(&self, status: u16) {
        self.responses.get_or_create(&StatusLabel { status }).inc();
    }

    /// Tells how many movements wait in the journals for the SQL ledger, or that nobody knows.
    pub fn journal_waiting(&self, movements: Option<u64>) {
        self.journal_waiting.set(movements);
    }

    /// Everything, in the `OpenMetrics` text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

impl DeductionMetrics for Metrics {
    fn deduction(&self, strategy: &'static str, outcome: &'static str, elapsed: Duration) {
        self.deductions
            .get_or_create(&DeductionLabels { strategy, outcome })
            .inc();
        self.deduct_seconds
            .get_or_create(&StrategyLabel { strategy })
            .observe(elapsed.as_secs_f64());
    }

    fn write_refused(&self, strategy: &'static str, reason: &'static str) {
        self.locks.write_refused(strategy, reason);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
