//! The metrics of the cached levels. They prove that an expired level costs one load, not one for each
//! request.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::{Counters, Labels, counters};

/// The metrics of the cached levels. Clones count together.
#[derive(Debug, Clone)]
pub(crate) struct CacheMetrics {
    reads: Counters<Labels<1>>,
    loads: Counter,
}

impl CacheMetrics {
    /// All metrics at zero, in `registry`.
    pub(super) fn register(registry: &mut Registry) -> Self {
        let loads = Counter::default();
        registry.register(
            "stock_cache_loads",
            "Reads of the database on behalf of all requests for a cached level that wait for them",
            loads.clone(),
        );
        let reads = counters(
            registry,
            "stock_cache_reads",
            "Requests for a cached level: hit, miss, or waited for another request",
        );
        Self { reads, loads }
    }

    /// Counts a request before it waits. `result` is `hit`; `miss`, if it began to load the level; or `waited`, if
    /// another request was loading it.
    pub(crate) fn read(&self, result: &'static str) {
        self.reads.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn load(&self) {
        self.loads.inc();
    }
}
