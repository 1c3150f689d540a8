//! The counters and histograms of one replica. Each replica has its own registry, so that replicas
//! (and tests) in one process count separately.

use std::fmt::Debug;
use std::hash::Hash;
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

/// Upper bounds in seconds, from a fast commit on loopback to the deadline.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// The names and values of `N` labels.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// One counter for each set of labels.
type Counters<L> = Family<L, Counter>;

/// One histogram of seconds for each set of labels.
type Seconds<L> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of one replica.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    deductions: Counters<Labels<2>>,
    deduct_seconds: Seconds<Labels<1>>,
    responses: Counters<[(&'static str, u16); 1]>,
    journal_waiting: Arc<JournalWaiting>,
    /// The metrics of the distributed locks.
    pub locks: LockMetrics,
}

impl Metrics {
    /// All counters at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let deductions = counters(
            &mut registry,
            "stock_deductions",
            "Deductions by strategy and outcome",
        );
        let deduct_seconds = seconds(
            &mut registry,
            "stock_deduct",
            "Time from the arrival of a deduction to its answer",
        );
        let responses = counters(&mut registry, "http_responses", "HTTP responses by status");
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

    /// Counts one HTTP response.
    pub fn response(&self, status: u16) {
        self.responses.get_or_create(&[("status", status)]).inc();
    }

    /// Sets the number of journal movements that wait for the SQL ledger; `None` if it is unknown.
    pub fn journal_waiting(&self, movements: Option<u64>) {
        self.journal_waiting.set(movements);
    }

    /// All metrics in the `OpenMetrics` text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }
}

impl DeductionMetrics for Metrics {
    fn deduction(&self, strategy: &'static str, outcome: &'static str, elapsed: Duration) {
        let labels = [("strategy", strategy), ("outcome", outcome)];
        self.deductions.get_or_create(&labels).inc();
        self.deduct_seconds
            .get_or_create(&[("strategy", strategy)])
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

fn counters<L>(registry: &mut Registry, name: &str, help: &str) -> Counters<L>
where
    L: EncodeLabelSet + Clone + Eq + Hash + Debug + Send + Sync + 'static,
{
    let counters = Family::default();
    registry.register(name, help, Family::clone(&counters));
    counters
}

fn seconds<const N: usize>(registry: &mut Registry, name: &str, help: &str) -> Seconds<Labels<N>> {
    let histograms: Seconds<Labels<N>> = Family::new_with_constructor(|| Histogram::new(SECONDS));
    registry.register_with_unit(name, help, Unit::Seconds, histograms.clone());
    histograms
}
