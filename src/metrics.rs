//! The counters and histograms of one replica. Each replica has its own registry, so that replicas
//! (and tests) in one process count separately.

use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeGaugeValue, EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use stocklock_core::ports::DeductionMetrics;
use stocklock_core::stock::{Audit, Sku};
use stocklock_store::JournalReport;

mod audits;
mod cache;
mod locks;

use audits::AuditGauges;
pub(crate) use cache::{CacheMetrics, CachedRead};
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
    journal_waiting: IfKnown<i64>,
    journal_rejected: IfKnown<i64>,
    journal_oldest: IfKnown<f64>,
    journal_bytes: IfKnown<i64>,
    journal_repeated: Counter,
    redis_memory_used: IfKnown<f64>,
    writes_refused: Counters<Labels<2>>,
    audits: AuditGauges,
    /// The metrics of the cached levels.
    pub(crate) cache: CacheMetrics,
    /// The metrics of the distributed locks.
    pub locks: LockMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let (journal_waiting, journal_rejected) = Default::default();
        let journal_repeated = Counter::default();
        registry.register(
            "journal_waiting_movements",
            "Movements in the Redis journals that are not yet in the SQL ledger. All replicas \
             report the same value: use max, not sum. Absent while Redis does not answer",
            IfKnown::clone(&journal_waiting),
        );
        let journal_oldest = IfKnown::default();
        registry.register_with_unit(
            "journal_oldest_movement",
            "How long the oldest movement in the Redis journals waits for the SQL ledger; 0 if none \
             waits. All replicas report the same value: use max, not sum. Absent while Redis does not \
             answer",
            Unit::Seconds,
            journal_oldest.clone(),
        );
        let journal_bytes = IfKnown::default();
        registry.register_with_unit(
            "journal",
            "How much of Redis the journals take together. All replicas report the same value: use max, \
             not sum. Absent while Redis does not answer",
            Unit::Bytes,
            IfKnown::clone(&journal_bytes),
        );
        registry.register(
            "journal_rejected_entries",
            "Journal entries that the SQL ledger refuses; `stocklock journal rejected` lists them. \
             All replicas report the same value: use max, not sum. Absent while Redis does not answer",
            IfKnown::clone(&journal_rejected),
        );
        registry.register(
            "journal_repeated_entries",
            "Journal entries that this replica applied although the SQL ledger had them, because \
             a lease or an answer was lost. Harmless: the ledger records a movement once",
            journal_repeated.clone(),
        );
        let redis_memory_used = IfKnown::default();
        registry.register(
            "redis_memory_used_ratio",
            "Used share of maxmemory of the Redis that holds stock; changes are refused from 0.9 on. \
             Absent without maxmemory, and while Redis does not answer",
            redis_memory_used.clone(),
        );
        Self {
            deductions: counters(
                &mut registry,
                "stock_deductions",
                "Deductions by strategy and outcome",
            ),
            deduct_seconds: seconds(
                &mut registry,
                "stock_deduct",
                "Time from the arrival of a deduction to its answer",
            ),
            responses: counters(&mut registry, "http_responses", "HTTP responses by status"),
            journal_waiting,
            journal_rejected,
            journal_oldest,
            journal_bytes,
            journal_repeated,
            redis_memory_used,
            writes_refused: counters(
                &mut registry,
                "stock_writes_refused",
                "Conditional writes that changed no row, because the version had moved or a later \
                 lock holder had left its fence",
            ),
            audits: AuditGauges::register(&mut registry),
            cache: CacheMetrics::register(&mut registry),
            locks: LockMetrics::register(&mut registry),
            registry,
        }
    }
}

impl Metrics {
    /// Counts one HTTP response.
    pub fn response(&self, status: u16) {
        self.responses.get_or_create(&[("status", status)]).inc();
    }

    /// Records what the journal consumer has found.
    pub fn journal(&self, report: JournalReport) {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        *self.journal_waiting.lock() = report.waiting.map(gauge);
        *self.journal_rejected.lock() = report.rejected.map(gauge);
        self.journal_repeated.inc_by(report.repeated);
    }

    /// Sets how long the oldest movement waits in the journals; `None` if that is unknown.
    pub fn journal_oldest(&self, waits: Option<Duration>) {
        *self.journal_oldest.lock() = waits.map(|waits| waits.as_secs_f64());
    }

    /// Sets how many bytes the journals take; `None` if that is unknown.
    pub fn journal_bytes(&self, bytes: Option<u64>) {
        let shown = bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        *self.journal_bytes.lock() = shown;
    }

    /// Sets the used share of `maxmemory` of the Redis that holds stock; `None` if it is unknown.
    pub fn redis_memory_used(&self, share: Option<f64>) {
        *self.redis_memory_used.lock() = share;
    }

    /// Remembers what an audit of a SKU found.
    pub fn audited(&self, sku: &Sku, audits: &[Audit]) {
        self.audits.record(sku, audits);
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
        observe(&self.deduct_seconds, &[("strategy", strategy)], elapsed);
    }

    fn write_refused(&self, strategy: &'static str, reason: &'static str) {
        let labels = [("strategy", strategy), ("reason", reason)];
        self.writes_refused.get_or_create(&labels).inc();
    }
}

fn counters<L>(registry: &mut Registry, name: &str, help: &str) -> Counters<L>
where
    L: EncodeLabelSet + Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static,
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

fn observe<const N: usize>(histograms: &Seconds<Labels<N>>, labels: &Labels<N>, time: Duration) {
    histograms.get_or_create(labels).observe(time.as_secs_f64());
}

/// A gauge that is absent while its value is unknown, because an old value would look current.
#[derive(Debug, Clone, Default)]
struct IfKnown<N>(Arc<Mutex<Option<N>>>);

impl<N> IfKnown<N> {
    fn lock(&self) -> MutexGuard<'_, Option<N>> {
        // No code panics while it holds this mutex.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<N: EncodeGaugeValue + Copy> EncodeMetric for IfKnown<N> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        let Some(value) = *self.lock() else {
            return Ok(());
        };
        ConstGauge::new(value).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.lock().is_none()
    }
}
