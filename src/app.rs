//! The composition root: builds a replica from its configuration and runs it.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, DatabaseConfig, Limits, Mode, RedisLoss, ServicesConfig};
use crate::http::{Api, HttpService};
use crate::level_cache::LevelCache;
use crate::locks::LockServers;
use crate::metrics::Metrics;
use crate::race::RaceSettings;
use crate::races::Races;
use crate::server::serve;
use stocklock_core::batching::TokioSpawn;
use stocklock_core::deduct::{DeductionContext, Deductor, GroupQueue, RetryPolicy, WritePool};
use stocklock_core::level_service::LevelService;
use stocklock_store::{OnRedisLoss, RedisOptions, StoreOptions, Stores, WatchOn};

mod checkpoints;
mod consumer;
mod prepare;
mod redis_binding;
mod redis_memory;

/// One replica of the service, without its socket.
#[derive(Debug)]
pub struct Replica {
    api: Arc<Api>,
    stores: Stores,
    writes: WritePool,
}

impl Replica {
    /// Builds a replica without connecting to any server. If a database does not answer, the
    /// replica is not ready, but it runs.
    ///
    /// # Errors
    /// One line that names the setting to change.
    pub fn build(config: &Config, mode: Mode) -> Result<Self, String> {
        config.validate(mode)?;
        let limits = &config.limits;
        let stores = open_stores(&config.database, &config.services, limits)?;
        let store = Arc::clone(&stores.store);
        let metrics = Arc::new(Metrics::default());
        // Every caller has its answer by the deadline; a task that holds its lock longer hangs.
        let max_hold = 2 * limits.request_deadline_ms;
        let replica = config.service.replica_id.clone().unwrap_or_else(replica_id);
        let locks = LockServers::new(
            &config.database,
            &config.services,
            &replica,
            max_hold,
            &metrics.locks,
        )?;
        let level_cache = LevelCache::new(&stores, &locks, limits, metrics.cache.clone());
        let available = config.available();
        let policy = RetryPolicy::new(
            limits.max_attempts,
            limits.wait_limit_ms,
            limits.unknown_outcome_limit(),
        );
        let writes = WritePool::new(limits.max_in_flight as usize);
        let groups = GroupQueue::new(Arc::clone(&store) as _, &policy, Arc::new(TokioSpawn));
        let sold_out = Arc::clone(groups.sold_out());
        let context = DeductionContext {
            groups,
            store: Arc::clone(&store) as _,
            mutexes: Arc::default(),
            locks: locks.locks.clone(),
            available: available.clone(),
            policy: policy.clone(),
            metrics: Arc::clone(&metrics) as _,
        };
        let levels = LevelService::new(
            Arc::clone(&store) as _,
            policy,
            writes.clone(),
            sold_out,
            Arc::clone(&level_cache) as _,
        );
        let api = Arc::new(Api {
            config: config.clone(),
            mode,
            replica,
            deductor: Arc::new(Deductor::new(context, writes.clone())),
            levels,
            store,
            level_cache,
            locks,
            available,
            metrics,
            races: None,
            shutdown: CancellationToken::new(),
        });
        Ok(Self {
            api,
            stores,
            writes,
        })
    }

    /// Lets the page of the lab start races.
    #[must_use]
    pub(crate) fn with_races(mut self, settings: RaceSettings) -> Self {
        let api = Arc::get_mut(&mut self.api).expect("the replica does not run yet");
        let place = api.config.database.place();
        let races = Races::new(settings, place, api.shutdown.clone());
        api.races = Some(Arc::new(races));
        self
    }

    /// Cancel this token to end [`Replica::run`].
    #[must_use]
    pub fn shutdown_token(&self) -> CancellationToken {
        self.api.shutdown.clone()
    }

    /// Serves on `listener` until the token is cancelled. Then, within the drain limit, it reports
    /// itself as not ready, finishes the requests in progress, and closes the servers' connections.
    pub async fn run(self, listener: TcpListener) {
        let Self {
            api,
            stores,
            writes,
        } = self;
        let limits = &api.config.limits;
        // The consumer must run until the last sale is in the journal. The guard ends it if this
        // future is dropped.
        let stop_consumer = CancellationToken::new();
        let _guard = stop_consumer.clone().drop_guard();
        let consumer = consumer::run(stores.clone(), Arc::clone(&api), stop_consumer.clone());
        let consumer = tokio::spawn(consumer);
        let store = Arc::clone(&stores.store);
        let confirming = redis_binding::run(Arc::clone(&store), stop_consumer.clone());
        let measuring = redis_memory::run(Arc::clone(&api), stop_consumer.clone());
        let checks = async { tokio::join!(confirming, measuring) };
        let checks = stores.have_redis().then(|| tokio::spawn(checks));
        let checkpoints = tokio::spawn(checkpoints::run(store, stop_consumer.clone()));
        let serve_and_drain = async {
            let http = HttpService::new(Arc::clone(&api));
            serve(listener, http, limits, api.shutdown.clone()).await;
            if let Some(races) = &api.races {
                races.ended().await;
            }
            writes.drained().await;
            stop_consumer.cancel();
            if let Err(error) = consumer.await {
                tracing::warn!(%error, "the journal consumer failed");
            }
            if let Err(error) = checkpoints.await {
                tracing::warn!(%error, "the writer of checkpoints failed");
            }
            if let Some(checks) = checks
                && let Err(error) = checks.await
            {
                tracing::warn!(%error, "the checks of Redis failed");
            }
            tokio::join!(
                api.level_cache.close(),
                api.locks.close(),
                stores.store.close()
            );
        };
        let drain_limit = async {
            api.shutdown.cancelled().await;
            tokio::time::sleep(limits.drain_limit_ms).await;
        };
        tokio::select! {
            () = serve_and_drain => {}
            () = drain_limit => tracing::warn!(
                operations = writes.in_flight(),
                "the drain limit has passed: connections, writes or locks are still open"
            ),
        }
    }
}

/// Opens the stores of a replica: SQL, and Redis if it is configured.
///
/// # Errors
/// One line that names the setting to change.
pub(crate) fn open_stores(
    database: &DatabaseConfig,
    services: &ServicesConfig,
    limits: &Limits,
) -> Result<Stores, String> {
    let options = StoreOptions {
        pool_size: database.database_pool_size,
        wait_limit: limits.wait_limit_ms,
    };
    let redis = services.redis_url.clone().map(|url| RedisOptions {
        url,
        wait_limit: limits.wait_limit_ms,
        request_deadline: limits.request_deadline_ms,
        watch_connections: services.redis_pool_size,
        watch_on: WatchOn::Exclusive,
        wait_replicas: services.redis_wait_replicas,
        journal_limit: services.journal_limit,
        journal_limit_bytes: services.journal_limit_bytes,
        on_loss: match services.on_redis_loss {
            RedisLoss::Refuse => OnRedisLoss::Refuse,
            RedisLoss::Reload => OnRedisLoss::Reload,
        },
    });
    Stores::open(database.url(), &options, redis)
}

/// Host name and process id: tells the replicas apart in headers and logs.
fn replica_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.chars().filter(char::is_ascii_graphic);
    let host: String = host.take(48).collect();
    let host = if host.is_empty() { "replica" } else { &host };
    format!("{host}-{}", std::process::id())
}
