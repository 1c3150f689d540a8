//! A cache of levels, for reads that accept an answer that is a little old.
//!
//! If the cached level of a hot SKU expires, hundreds of requests miss it at once. One task loads the level
//! from the database, and the requests wait for its result. Each replica caches for itself.
//!
//! - An answer is at most `max_age` old, and the time of one load. It counts from before the load. One
//!   load of a level is in progress at a time.
//! - A change of the level by an operator ends its cached value before the change is answered. A sale
//!   does not: a hot level changes so often that every read would miss. No sale is decided on a cached
//!   level.
//! - A SKU that does not exist is cached too. A failure is not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use stocklock_core::ports::CachedLevels;
use stocklock_core::stock::{Sku, StockError, StockLevel};
use stocklock_store::Store;

use crate::metrics::CacheMetrics;

/// How many SKUs one replica caches.
const MAX_SKUS: usize = 10_000;

/// All levels of a SKU, or why they could not be loaded.
pub(crate) type Loaded = Result<Arc<[StockLevel]>, StockError>;

/// The cache of one replica.
#[derive(Debug)]
pub(crate) struct LevelCache {
    store: Arc<dyn Store>,
    /// How old a cached level may be.
    max_age: Duration,
    metrics: CacheMetrics,
    /// The loads in progress, and those that have succeeded.
    loads: Mutex<HashMap<Sku, Load>>,
}

/// One task that loads the levels of a SKU.
#[derive(Debug)]
struct Load {
    began: Instant,
    result: watch::Receiver<Option<Loaded>>,
}

impl LevelCache {
    /// A cache of levels in this store.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        max_age: Duration,
        metrics: CacheMetrics,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            max_age,
            metrics,
            loads: Mutex::default(),
        })
    }

    /// All levels of a SKU in warehouse order, from the cache or the database. Empty if there is no such
    /// SKU.
    ///
    /// # Errors
    /// The database does not answer. All requests that wait for one load get its error.
    ///
    /// # Cancel safety
    /// The future may be dropped. The load continues, because other requests wait for it.
    pub(crate) async fn levels_of(self: &Arc<Self>, sku: &Sku) -> Loaded {
        let mut result = self.join_or_start(sku);
        // The task sends a result, unless it panics or the process ends.
        let loaded = result.wait_for(Option::is_some).await;
        let loaded = loaded.ok().and_then(|loaded| loaded.clone());
        loaded.unwrap_or_else(|| {
            let what = "the task that loads a level ended early".to_owned();
            Err(StockError::Internal { what })
        })
    }

    /// The result of the load in progress, of a recent one, or of a new one.
    fn join_or_start(self: &Arc<Self>, sku: &Sku) -> watch::Receiver<Option<Loaded>> {
        let mut loads = self.loads.lock();
        if let Some(load) = loads.get(sku)
            && let is_done = load.result.borrow().is_some()
            && (!is_done || load.began.elapsed() < self.max_age)
        {
            self.metrics.read(if is_done { "hit" } else { "waited" });
            return load.result.clone();
        }
        if loads.len() >= MAX_SKUS {
            // Cheap to rebuild: one query per SKU. Requests wait for those in progress.
            loads.retain(|_, load| load.result.borrow().is_none());
        }
        let (done, result) = watch::channel(None);
        let load = Load {
            began: Instant::now(),
            result: result.clone(),
        };
        loads.insert(sku.clone(), load);
        drop(loads);
        tokio::spawn(Arc::clone(self).run(sku.clone(), done));
        result
    }

    async fn run(self: Arc<Self>, sku: Sku, done: watch::Sender<Option<Loaded>>) {
        self.metrics.read("miss");
        self.metrics.load();
        let loaded = match self.store.levels_of(&sku).await {
            Ok(levels) => Ok(levels.into()),
            Err(error) => {
                self.end_joining(&sku, &done);
                Err(error.into())
            }
        };
        done.send_replace(Some(loaded));
    }

    /// Lets no further request wait for this load.
    fn end_joining(&self, sku: &Sku, done: &watch::Sender<Option<Loaded>>) {
        // Only this load: a change of the level may have removed it, and another one started.
        let mut loads = self.loads.lock();
        let result = loads.get(sku).map(|load| &load.result);
        if result.is_some_and(|result| result.same_channel(&done.subscribe())) {
            loads.remove(sku);
        }
    }
}

impl CachedLevels for LevelCache {
    fn forget(&self, sku: &Sku) {
        self.loads.lock().remove(sku);
    }
}
