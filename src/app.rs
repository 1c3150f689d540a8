//! The composition root: from configuration to a replica that serves.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, DatabaseConfig, Limits, Mode, ServicesConfig};
use crate::http::{Api, BodyLimits, Lab, router};
use crate::locks::{LockServers, LockSettings};
use crate::metrics::Metrics;
use crate::server::{ServerLimits, serve};
use crate::supervise::supervise;
use stocklock_core::deduct::{DeductionContext, Deductor, RetryPolicy, WritePool};
use stocklock_core::level_service::LevelService;
use stocklock_core::stock::{
    Home, LevelChange, OperationId, Precondition, Reason, Sku, StockError, Warehouse,
};
use stocklock_core::strategy::LocalMutexes;
use stocklock_store::{RedisOptions, StoreOptions, Stores, WatchOn};

/// The SKU that the lab seeds, and deducts where none is named.
const LAB_SKU: &str = "1001";

/// The same for strategies that work on Redis only.
const LAB_REDIS_SKU: &str = "1001-redis";

/// How many units of each the lab seeds.
const LAB_STOCK: i64 = 5_000;

/// One replica of the service: everything but the socket.
#[derive(Debug)]
pub struct Replica {
    api: Arc<Api>,
    stores: Stores,
    locks: LockServers,
    lock_lease: Duration,
    limits: Limits,
    operations: WritePool,
    shutdown: CancellationToken,
}

impl Replica {
    /// Puts a replica together. Nothing is connected to yet: a database that is away makes it not
    /// ready, not dead.
    ///
    /// # Errors
    /// One line that names the setting to change.
    pub fn build(config: &Config, mode: Mode) -> Result<Self, String> {
        config.validate(mode)?;
        let limits = config.limits.clone();
        let stores = open_stores(&config.database, &config.services, &limits)?;
        let store = Arc::clone(&stores.store);
        let replica = config.service.replica_id.clone().unwrap_or_else(replica_id);
        let policy = RetryPolicy::new(
            limits.max_attempts,
            limits.wait_limit_ms,
            limits.doubt_limit(),
        );
        let metrics = Arc::new(Metrics::new());
        let operations = WritePool::new(limits.max_in_flight as usize, limits.request_deadline_ms);
        let shutdown = CancellationToken::new();
        let locks = LockServers::new(&lock_settings(config), &metrics)?;
        let available = config.services.available();
        let context = DeductionContext {
            store: Arc::clone(&store) as _,
            mutexes: LocalMutexes::new(),
            locks: locks.locks().clone(),
            available: available.clone(),
            policy: policy.clone(),
            metrics: Arc::clone(&metrics) as _,
        };
        let deductor = Deductor::new(context, operations.clone());
        let changes = LevelService::new(Arc::clone(&store) as _, policy, operations.clone());
        let api = Arc::new(Api {
            replica,
            deductor: Arc::new(deductor),
            changes,
            store,
            locks: locks.clone(),
            available,
            strategy: config.service.strategy,
            lab: (mode == Mode::Lab).then(|| Lab {
                default_sku: sku(LAB_SKU),
                default_redis_sku: sku(LAB_REDIS_SKU),
            }),
            body: BodyLimits {
                bytes: limits.max_body_bytes as usize,
                time: limits.body_timeout_ms,
            },
            metrics,
            shutdown: shutdown.clone(),
        });
        Ok(Self {
            api,
            stores,
            locks,
            lock_lease: config.services.lock_lease_ms,
            limits,
            operations,
            shutdown,
        })
    }

    /// Warns of server settings under which a promise does not hold.
    pub async fn warn_of_unsafe_settings(&self) {
        let (settings, services) =
            tokio::join!(self.stores.store.unsafe_settings(), self.locks.warnings());
        match settings {
            Ok(problems) => problems
                .iter()
                .for_each(|problem| tracing::warn!("{problem}")),
            Err(error) => tracing::warn!(%error, "the database's settings could not be checked"),
        }
        for problem in services {
            tracing::warn!("{problem}");
        }
        let (lease, deadline) = (self.lock_lease, self.limits.request_deadline_ms);
        if self.locks.locks().iter().next().is_some() && lease < deadline {
            tracing::warn!(
                ?lease,
                ?deadline,
                "LOCK_LEASE_MS is shorter than REQUEST_DEADLINE_MS: a pause that a request would \
                 survive loses its lock; set it to more"
            );
        }
    }

    /// Gives the lab's SKUs their stock, where there is none yet.
    ///
    /// # Errors
    /// Whatever keeps a level from being set.
    pub async fn seed_lab(&self) -> Result<(), StockError> {
        self.seed(LAB_SKU, Home::Sql).await?;
        if self.stores.have_redis() {
            self.seed(LAB_REDIS_SKU, Home::Redis).await?;
        }
        Ok(())
    }

    async fn seed(&self, name: &str, home: Home) -> Result<(), StockError> {
        let change = LevelChange {
            operation: OperationId::mint(),
            sku: sku(name),
            warehouse: Warehouse::default(),
            on_hand: LAB_STOCK,
            backorder_limit: None,
            home: Some(home),
            reason: Reason::parse("seeded by the lab").ok(),
            precondition: Some(Precondition::Absent),
        };
        match self.api.changes.set_level(change).await {
            Ok(_) | Err(StockError::PreconditionFailed) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Cancel it to make [`Replica::run`] end.
    #[must_use]
    pub fn shutdown_token(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Serves on `listener` until the token is cancelled; then refuses readiness, lets what is
    /// under way finish, and closes the database, all within the drain limit.
    pub async fn run(self, listener: TcpListener) {
        let limits = ServerLimits {
            max_connections: self.limits.max_connections as usize,
            first_byte: self.limits.first_byte_timeout_ms,
            header: self.limits.header_timeout_ms,
            idle: self.limits.idle_timeout_ms,
        };
        let router = router(Arc::clone(&self.api));
        // It outlives the last sale, and ends with this future whatever happens.
        let follow_until = CancellationToken::new();
        let _ends = follow_until.clone().drop_guard();
        let following = follow(
            self.stores.clone(),
            Arc::clone(&self.api),
            follow_until.clone(),
        );
        let following = tokio::spawn(following);
        let to_the_end = async {
            serve(listener, router, limits, self.shutdown.clone()).await;
            self.operations.drained().await;
            follow_until.cancel();
            if let Err(error) = following.await {
                tracing::warn!(%error, "what follows the journals ended badly");
            }
            tokio::join!(self.locks.close(), self.stores.store.close());
        };
        let drain_limit = async {
            self.shutdown.cancelled().await;
            tokio::time::sleep(self.limits.drain_limit_ms).await;
        };
        tokio::select! {
            () = to_the_end => {}
            () = drain_limit => tracing::warn!(
                operations = self.operations.in_flight(),
                "connections, operations or locks still open at the drain limit"
            ),
        }
    }
}

fn lock_settings(config: &Config) -> LockSettings<'_> {
    LockSettings {
        redis_url: config.services.redis_url.as_ref(),
        zookeeper_connect: config.services.zookeeper_connect.as_deref(),
        lease: config.services.lock_lease_ms,
        // Nobody waits for it any more by then, so it hangs.
        max_hold: 2 * config.limits.request_deadline_ms,
    }
}

/// Follows the journals, if there is a Redis, until it is told to stop.
async fn follow(stores: Stores, api: Arc<Api>, until: CancellationToken) {
    if !stores.have_redis() {
        return;
    }
    let begin = || {
        let follower = stores.follower(&api.replica);
        let (api, until) = (Arc::clone(&api), until.clone());
        async move {
            if let Some(follower) = follower {
                let tell = move |movements| api.metrics.journal_waiting(movements);
                follower.run(until, tell).await;
            }
        }
    };
    supervise("what follows the journals", &until, begin).await;
}

/// Opens the stores of a replica, of both homes.
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
        watch_connections: services.redis_pool_size,
        watch_on: WatchOn::Exclusive,
        journal_limit: services.journal_limit,
    });
    Stores::open(database.url(), &options, redis)
}

fn sku(name: &str) -> Sku {
    Sku::parse(name).expect("the lab's SKUs are SKUs")
}

/// The host's name and the process id: unique enough to tell replicas apart in headers and logs.
fn replica_id() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String = host
        .trim()
        .chars()
        .filter(char::is_ascii_graphic)
        .take(48)
        .collect();
    let host = if host.is_empty() { "replica" } else { &host };
    format!("{host}-{}", std::process::id())
}
