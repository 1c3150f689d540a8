//! Gauges of how far background tasks are behind.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

/// Since when each of some tasks is behind. The gauge is the longest of these times, 0 if none is. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct Lag<K>(Arc<Mutex<HashMap<K, Instant>>>);

impl<K: Copy + Eq + Hash + fmt::Debug + Send + 'static> Lag<K> {
    pub(super) fn register(registry: &mut Registry, name: &str, help: &str) -> Self {
        let lag = Self(Arc::default());
        registry.register_with_unit(name, help, Unit::Seconds, lag.clone());
        lag
    }

    /// The oldest work of this task that is not done is there since then.
    pub(crate) fn set(&self, task: K, since: Instant) {
        self.0.lock().insert(task, since);
    }

    /// This task has no more work, or does not work any more.
    pub(crate) fn clear(&self, task: K) {
        self.0.lock().remove(&task);
    }
}

impl<K: Copy + Eq + Hash + fmt::Debug + Send + 'static> EncodeMetric for Lag<K> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        let since = self.0.lock().values().min().copied();
        let seconds = since.map_or(0.0, |since| since.elapsed().as_secs_f64());
        ConstGauge::new(seconds).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
