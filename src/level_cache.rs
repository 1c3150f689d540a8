//! A cache of levels, for reads that accept an answer that is a little old.
//!
//! If the cached level of a hot SKU expires, hundreds of requests miss it at once. One of them loads the
//! level from the database, and the others wait for its result: those of one replica for one task, and
//! the replicas for a lock. Without Redis, each replica caches for itself.
//!
//! - An answer is at most `max_age` old, and the time of one load. It counts from before the load.
//! - A change of the level by an operator ends its cached value before the change is answered. A sale
//!   does not: a hot level changes so often that every read would miss. No sale is decided on a cached
//!   level.
//! - The lock only saves loads. If Redis or the lock does not answer in time, the replica loads.
//! - A SKU that does not exist is cached too. A failure is not.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use stocklock_core::ports::CachedLevels;
use stocklock_core::stock::{Sku, StockError, StockLevel};
use stocklock_locks::{LockGuard, LockManager};
use stocklock_store::{Cached, Miss, SharedLevels, StoreRouter, Stores};

use crate::config::Limits;
use crate::locks::LockServers;
use crate::metrics::{CacheMetrics, CachedRead};

/// How many SKUs one replica caches without Redis.
const MAX_SKUS: usize = 10_000;

/// How many locks the loads share. Each lock that was ever used occupies the Redis of the locks for a
/// while, so its name must not come from the request.
const LOCKS: u64 = 1_024;

/// All levels of a SKU, or why they could not be loaded.
pub(crate) type Loaded = Result<Arc<[StockLevel]>, Arc<StockError>>;

/// The cache of one replica, and its part in the cache of all replicas.
#[derive(Debug)]
pub(crate) struct LevelCache {
    store: Arc<StoreRouter>,
    /// How old a cached level may be.
    max_age: Duration,
    /// The cache that replicas share.
    shared: Option<SharedCache>,
    metrics: CacheMetrics,
    /// The loads in progress. Without a shared cache also those that have succeeded.
    loads: Mutex<HashMap<Sku, Load>>,
}

/// The cache that replicas share, and the locks with which one of them loads.
#[derive(Debug)]
struct SharedCache {
    levels: SharedLevels,
    locks: LockManager,
    /// How long to wait for Redis.
    redis_limit: Duration,
}

/// One task that looks a SKU up, and loads its levels if necessary.
#[derive(Debug)]
struct Load {
    began: Instant,
    result: watch::Receiver<Option<Loaded>>,
}

impl LevelCache {
    /// A cache of levels in these stores. The replicas share it if there are a Redis with stock and one for
    /// locks.
    pub(crate) fn new(
        stores: &Stores,
        locks: &LockServers,
        limits: &Limits,
        metrics: CacheMetrics,
    ) -> Arc<Self> {
        let (max_age, wait) = (limits.cached_level_max_age_ms, limits.wait_limit_ms);
        let shared = stores.shared_levels(max_age).zip(locks.for_cache(wait));
        Arc::new(Self {
            store: Arc::clone(&stores.store),
            max_age,
            shared: shared.map(|(levels, locks)| SharedCache {
                levels,
                locks,
                redis_limit: wait / 2,
            }),
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
            Err(Arc::new(StockError::Internal { what }))
        })
    }

    /// The result of the load in progress, of a recent one, or of a new one.
    fn join_or_start(self: &Arc<Self>, sku: &Sku) -> watch::Receiver<Option<Loaded>> {
        let mut loads = self.loads();
        if let Some(load) = loads.get(sku)
            && load.began.elapsed() < self.max_age
        {
            let is_done = load.result.borrow().is_some();
            self.metrics.read(if is_done {
                CachedRead::Hit
            } else {
                CachedRead::Waited
            });
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
        let (loaded, guard) = if let Some(shared) = &self.shared {
            self.look_up(shared, &sku, &done).await
        } else {
            self.metrics.read(CachedRead::Miss);
            (self.load(&sku).await, None)
        };
        if self.shared.is_some() || loaded.is_err() {
            self.end_joining(&sku, &done);
        }
        done.send_replace(Some(loaded));
        if let Some(guard) = guard {
            // The outcome does not matter: the cache is filled, or another replica loads.
            guard.release().await;
        }
    }

    /// Lets no further request wait for this load.
    fn end_joining(&self, sku: &Sku, done: &watch::Sender<Option<Loaded>>) {
        // Only this load: a change of the level may have removed it, and another one started.
        let mut loads = self.loads();
        let result = loads.get(sku).map(|load| &load.result);
        if result.is_some_and(|result| result.same_channel(&done.subscribe())) {
            loads.remove(sku);
        }
    }

    /// Looks a SKU up in the shared cache. Loads its levels if they are not there and no other replica
    /// loads them. Returns also the lock, which is released once the requests have their answer.
    async fn look_up(
        &self,
        shared: &SharedCache,
        sku: &Sku,
        done: &watch::Sender<Option<Loaded>>,
    ) -> (Loaded, Option<LockGuard>) {
        match shared.get(sku).await {
            Some(Cached::Hit(levels)) => {
                self.metrics.read(CachedRead::Hit);
                return (Ok(levels.into()), None);
            }
            Some(Cached::Miss(_)) => self.metrics.read(CachedRead::Miss),
            None => {
                self.metrics.read(CachedRead::Bypassed);
                return (self.load(sku).await, None);
            }
        }
        let lock = shared.locks.lock(&lock_name(sku));
        let guard = match lock.acquire().await {
            Ok(guard) => Some(guard),
            Err(error) => {
                tracing::debug!(%sku, %error, "a level is loaded without the lock");
                None
            }
        };
        // Another replica may have filled the cache in the meantime.
        let miss = match shared.get(sku).await {
            Some(Cached::Hit(levels)) => return (Ok(levels.into()), guard),
            Some(Cached::Miss(miss)) => Some(miss),
            None => None,
        };
        let loaded = self.load(sku).await;
        if let (Some(miss), Ok(levels)) = (miss, &loaded)
            && !shared.fill(sku, miss, levels).await
        {
            // The level may have changed since it was read, and the change may be answered. All requests
            // that wait began before the next read; later ones start a load of their own.
            self.end_joining(sku, done);
            return (self.load(sku).await, guard);
        }
        (loaded, guard)
    }

    async fn load(&self, sku: &Sku) -> Loaded {
        self.metrics.load();
        let levels = self.store.levels_of(sku).await;
        let levels = levels.map_err(|error| Arc::new(StockError::from(error)))?;
        Ok(levels.into())
    }

    /// Releases the locks.
    pub(crate) async fn close(&self) {
        if let Some(shared) = &self.shared {
            shared.locks.shutdown().await;
        }
    }

    fn loads(&self) -> MutexGuard<'_, HashMap<Sku, Load>> {
        // No code panics while it holds this mutex.
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl CachedLevels for LevelCache {
    /// If Redis does not answer, other requests may get the old value until it expires.
    async fn forget(&self, sku: &Sku) {
        if let Some(shared) = &self.shared {
            let forgotten = timeout(shared.redis_limit, shared.levels.forget(sku)).await;
            if let Ok(Err(error)) = forgotten {
                tracing::debug!(%sku, ?error, "the cached level stays until it expires");
            }
        }
        // After the shared cache: a load that began before may have the old value.
        self.loads().remove(sku);
    }
}

/// The lock under which a SKU is loaded. Replicas of different versions may choose different locks; then
/// each of them loads.
fn lock_name(sku: &Sku) -> String {
    let mut hasher = DefaultHasher::new();
    sku.as_str().hash(&mut hasher);
    format!("level-cache:{}", hasher.finish() % LOCKS)
}

impl SharedCache {
    /// `None` if Redis does not answer in time.
    async fn get(&self, sku: &Sku) -> Option<Cached> {
        match timeout(self.redis_limit, self.levels.get(sku)).await {
            Ok(Ok(cached)) => Some(cached),
            Ok(Err(error)) => {
                tracing::debug!(%sku, ?error, "the cache of levels does not answer");
                None
            }
            Err(_) => None,
        }
    }

    /// Whether the levels are in the cache now. `false` also if Redis does not answer in time.
    async fn fill(&self, sku: &Sku, miss: Miss, levels: &[StockLevel]) -> bool {
        match timeout(self.redis_limit, self.levels.fill(sku, miss, levels)).await {
            Ok(Ok(stored)) => stored,
            Ok(Err(error)) => {
                tracing::debug!(%sku, ?error, "the cache of levels was not filled");
                false
            }
            Err(_) => false,
        }
    }
}
