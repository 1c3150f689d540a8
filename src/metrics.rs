//! The counters and histograms of one replica. Each replica has its own registry, so that replicas
//! (and tests) in one process count separately.

use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use uuid::Uuid;

use crate::telemetry;
use stocklock_core::ports::DeductionMetrics;
use stocklock_core::stock::{Audit, Sku};

mod audits;
mod cache;
mod lag;
mod locks;

use audits::AuditGauges;
pub(crate) use cache::CacheMetrics;
pub(crate) use lag::Lag;
pub use locks::LockMetrics;

/// Upper bounds in seconds, from a fast commit on loopback to the deadline.
const SECONDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0,
];

/// Upper bounds of the lines of a batch.
const LINES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

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
    operations: Counters<Labels<2>>,
    holds_expired: Counters<Labels<1>>,
    batch_lines: Histogram,
    deduct_seconds: Seconds<Labels<1>>,
    responses: Counters<[(&'static str, u16); 1]>,
    counter_asks: Counters<Labels<1>>,
    writes_refused: Counters<Labels<2>>,
    /// Messages to webhooks that have not arrived.
    pub(crate) webhook_failures: Counter,
    /// Webhooks that the service has disabled, if this replica sends.
    pub(crate) webhooks_disabled: Gauge,
    /// The webhooks that this replica sends to, and that have not got all events.
    pub(crate) webhook_lag: Lag<Uuid>,
    /// The publisher of events.
    pub(crate) feed_lag: Lag<()>,
    audits: AuditGauges,
    /// The metrics of the cached levels.
    pub(crate) cache: CacheMetrics,
    /// The metrics of the distributed locks.
    pub locks: LockMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        registry.register(
            "log_lines_dropped",
            "Log lines that were not written, because the reader of stderr is gone or does not read",
            telemetry::dropped_lines(),
        );
        let webhook_failures = Counter::default();
        registry.register(
            "webhook_failures",
            "Messages to webhooks that have not arrived; they are sent again",
            webhook_failures.clone(),
        );
        let webhooks_disabled = Gauge::default();
        registry.register(
            "webhooks_disabled",
            "Webhooks that the service has disabled; their `problem` says why. 0 in replicas that do not send to \
             webhooks now",
            webhooks_disabled.clone(),
        );
        let webhook_lag = Lag::register(
            &mut registry,
            "webhook_lag",
            "Age of the oldest event that a webhook has not got, of the webhook that is furthest behind. 0 in \
             replicas that do not send to webhooks now",
        );
        let feed_lag = Lag::register(
            &mut registry,
            "feed_lag",
            "For how long the publisher of events has not published all changes of this replica",
        );
        registry.register(
            "trace_spans_dropped",
            "Spans that were not sent, because the collector of traces is away or too slow",
            telemetry::dropped_spans(),
        );
        let responses = counters(&mut registry, "http_responses", "HTTP responses by status");
        let counter_asks = counters(
            &mut registry,
            "counter_asks",
            "What the counters in Redis answered to deductions: admitted, refused, loaded first, no \
             connection free (busy), contended, or unavailable",
        );
        let batch_lines = Histogram::new(LINES);
        registry.register(
            "batch_lines",
            "Lines of operations that group commit has written together",
            batch_lines.clone(),
        );
        // What alerts look at begins at zero: Prometheus sees no increase in a counter that appears with its
        // first event.
        for status in [500, 503, 504] {
            let _ = responses.get_or_create(&[("status", status)]);
        }
        let _ = counter_asks.get_or_create(&[("answer", "unavailable")]);
        let holds_expired = counters(
            &mut registry,
            "holds_expired",
            "Holds that have expired: ended by a sale that found too few units, or in the background",
        );
        for by in ["sale", "background"] {
            let _ = holds_expired.get_or_create(&[("by", by)]);
        }
        Self {
            webhook_failures,
            webhooks_disabled,
            webhook_lag,
            feed_lag,
            responses,
            counter_asks,
            deductions: counters(
                &mut registry,
                "stock_deductions",
                "Deductions by strategy and outcome",
            ),
            batch_lines,
            holds_expired,
            operations: counters(
                &mut registry,
                "stock_operations",
                "Operations that are no deductions of one line, by kind and outcome",
            ),
            deduct_seconds: seconds(
                &mut registry,
                "stock_deduct",
                "Time from the arrival of a deduction to its answer",
            ),
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

    fn operation(&self, kind: &'static str, outcome: &'static str) {
        let labels = [("kind", kind), ("outcome", outcome)];
        self.operations.get_or_create(&labels).inc();
    }

    fn hold_expired(&self, by: &'static str) {
        self.holds_expired.get_or_create(&[("by", by)]).inc();
    }

    fn batch(&self, lines: usize) {
        self.batch_lines.observe(lines as f64);
    }

    fn write_refused(&self, strategy: &'static str, reason: &'static str) {
        let labels = [("strategy", strategy), ("reason", reason)];
        self.writes_refused.get_or_create(&labels).inc();
    }

    fn counter_asked(&self, answer: &'static str) {
        self.counter_asks.get_or_create(&[("answer", answer)]).inc();
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
