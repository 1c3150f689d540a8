//! The metrics of the cached levels. They prove that an expired level costs one load, not one for each
//! request.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

use super::{Counters, Labels, counters};

/// How a request for a cached level was handled. Each request counts once, before it waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CachedRead {
    /// The cache had the level.
    Hit,
    /// The cache did not have the level, and the request began to load it.
    Miss,
    /// Another request was loading the level, so the request waits for it.
    Waited,
}

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

    pub(crate) fn read(&self, read: CachedRead) {
        let result = match read {
            CachedRead::Hit => "hit",
            CachedRead::Miss => "miss",
            CachedRead::Waited => "waited",
        };
        self.reads.get_or_create(&[("result", result)]).inc();
    }

    pub(crate) fn load(&self) {
        self.loads.inc();
    }
}
