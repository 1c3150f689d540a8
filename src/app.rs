//! The composition root: builds a replica from its configuration and runs it.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::access::{Access, KeyRing};
use crate::config::{ADMIN_CONNECTIONS, Auth, Config, DatabaseConfig, Limits, Mode};
use crate::crowd::Crowd;
use crate::events::Followers;
use crate::http::{Api, BodyBudget, MAX_BULK, Readiness, probes, routes, service};
use crate::level_cache::LevelCache;
use crate::locks::LockServers;
use crate::metrics::Metrics;
use crate::server::serve;
use crate::webhooks::{Allowed, Client};
use stocklock_core::deduct::{Counters, Deductor, RetryPolicy, Scheduler, WritePool};
use stocklock_core::level_service::LevelService;
use stocklock_core::spawn::TokioSpawn;
use stocklock_core::strategy::{DeductionContext, Strategy};
use stocklock_lab::{RaceSettings, Races};
use stocklock_store::{RedisCounters, RedisOptions, Store, StoreOptions};

mod checkpoints;
mod keys;
mod prepare;
mod publisher;
mod sender;
mod supervise;

/// One replica of the service, without its socket.
#[derive(Debug)]
pub struct Replica {
    api: Arc<Api>,
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
        let store = open_store(&config.database, limits)?;
        let redis = open_counters(config, &store)?;
        let metrics = Arc::new(Metrics::default());
        // Every caller has its answer by the deadline; a task that holds its lock longer hangs.
        let max_hold = 2 * limits.request_deadline_ms;
        let replica = config.service.name();
        let locks = LockServers::new(
            &config.database,
            &config.services,
            &replica,
            max_hold,
            &metrics.locks,
        )?;
        let max_age = limits.cached_level_max_age_ms;
        let level_cache = LevelCache::new(Arc::clone(&store), max_age, metrics.cache.clone());
        let counters = redis.clone().map(|redis| Arc::new(Counters::new(redis)));
        let mut available = config.available();
        if redis.as_ref().is_some_and(|redis| redis.is_cluster()) {
            available = available.without(Strategy::RedisWatch, WATCH_ON_CLUSTER);
        }
        if let Some(reason) = available.why_not(config.service.strategy) {
            let strategy = config.service.strategy;
            return Err(format!("STRATEGY: {strategy} is not available: {reason}"));
        }
        let policy = RetryPolicy::new(
            limits.max_attempts,
            limits.wait_limit_ms,
            limits.unknown_outcome_limit(),
        );
        let writes = WritePool::new(limits.max_in_flight as usize, config.service.shard);
        let scheduler = Scheduler::new(
            Arc::clone(&store) as _,
            &policy,
            Arc::new(TokioSpawn),
            Arc::clone(&metrics) as _,
        );
        let context = DeductionContext {
            scheduler: Arc::clone(&scheduler),
            store: Arc::clone(&store) as _,
            mutexes: Arc::default(),
            counters: counters.clone(),
            locks: locks.locks.clone(),
            available: available.clone(),
            policy: policy.clone(),
            metrics: Arc::clone(&metrics) as _,
        };
        let levels = LevelService::new(
            Arc::clone(&store) as _,
            policy,
            writes.clone(),
            scheduler,
            Arc::clone(&level_cache) as _,
            counters,
            Arc::clone(&metrics) as _,
        );
        let access = match (mode, config.service.auth) {
            (Mode::Serve, Auth::Keys) => Access::Keys(KeyRing::default()),
            (Mode::Serve, Auth::None) | (Mode::Lab, _) => Access::Open,
        };
        let followers = config.events.are_on().then(|| {
            store.follow_changes();
            Followers::new(limits.max_connections as usize / 4)
        });
        let api = Arc::new(Api {
            access: Arc::new(access),
            config: config.clone(),
            mode,
            replica,
            deductor: Arc::new(Deductor::new(context, writes.clone(), levels.clone())),
            levels,
            store,
            level_cache,
            followers,
            webhooks: Client::new(Allowed(config.events.webhook_allow.clone())),
            redis,
            locks,
            available,
            metrics,
            races: None,
            crowd: Crowd::new(limits.max_connections),
            bodies: BodyBudget::default(),
            bulk: Arc::new(Semaphore::new(MAX_BULK)),
            readiness: Readiness::default(),
            shutdown: CancellationToken::new(),
        });
        Ok(Self { api, writes })
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
    /// Metrics and probes are on `admin` if `ADMIN_LISTEN` is set, until the requests are finished.
    pub async fn run(self, listener: TcpListener, admin: Option<TcpListener>) {
        let Self { api, writes } = self;
        let limits = &api.config.limits;
        // The guard ends the task if this future is dropped.
        let stop = CancellationToken::new();
        let _guard = stop.clone().drop_guard();
        let store = Arc::clone(&api.store);
        let checkpoints = tokio::spawn(checkpoints::run(
            Arc::clone(&store),
            api.levels.clone(),
            stop.clone(),
        ));
        let keys = tokio::spawn(keys::run(Arc::clone(&api), stop.clone()));
        let publisher = tokio::spawn(publisher::run(Arc::clone(&api), stop.clone()));
        let sender = tokio::spawn(sender::run(Arc::clone(&api), stop.clone()));
        if let Some(admin) = admin {
            let http = service(Arc::clone(&api), probes(&api));
            let (limits, crowd) = (limits.clone(), Crowd::new(ADMIN_CONNECTIONS));
            let stop = stop.clone();
            tokio::spawn(async move { serve(admin, http, &limits, crowd, stop).await });
        }
        let serve_and_drain = async {
            let http = service(Arc::clone(&api), routes(&api));
            let (crowd, shutdown) = (api.crowd.clone(), api.shutdown.clone());
            serve(listener, http, limits, crowd, shutdown).await;
            if let Some(races) = &api.races {
                races.ended().await;
            }
            writes.drained().await;
            stop.cancel();
            for (name, task) in [
                ("writer of checkpoints", checkpoints),
                ("loader of API keys", keys),
                ("publisher of events", publisher),
                ("sender of webhooks", sender),
            ] {
                if let Err(error) = task.await {
                    tracing::warn!(%error, "the {name} failed");
                }
            }
            tokio::join!(api.locks.close(), store.close());
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

/// Why `redis-watch` cannot be used with a cluster.
const WATCH_ON_CLUSTER: &str = "it needs one Redis or Sentinels, because a cluster has no connection for WATCH alone: use redis-lua";

/// Opens the store without connecting to the database.
///
/// # Errors
/// One line that names the setting to change.
pub(crate) fn open_store(
    database: &DatabaseConfig,
    limits: &Limits,
) -> Result<Arc<dyn Store>, String> {
    let options = StoreOptions {
        pool_size: database.database_pool_size,
        wait_limit: limits.wait_limit_ms,
    };
    let store = stocklock_store::connect(database.url(), &options);
    store.map_err(|problem| format!("DATABASE_URL: {problem}"))
}

/// Opens the counters of the store's levels, if there is a Redis.
fn open_counters(
    config: &Config,
    store: &Arc<dyn Store>,
) -> Result<Option<Arc<RedisCounters>>, String> {
    let services = &config.services;
    let Some(url) = services.redis_url.clone() else {
        return Ok(None);
    };
    let options = RedisOptions {
        url,
        wait_limit: config.limits.wait_limit_ms,
        pool_size: services.redis_pool_size,
    };
    let counters = RedisCounters::open(&options, Arc::clone(store));
    let counters = counters.map_err(|problem| format!("REDIS_URL: {problem}"))?;
    Ok(Some(Arc::new(counters)))
}
