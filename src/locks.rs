//! The distributed locks of one replica: one manager for each configured lock server, and two for the
//! table of locks in the database, of which one elects leaders.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::ExposeSecret;
use stocklock_core::ports::{HeldLock, Lock, LockError};
use stocklock_core::stock::Fence;
use stocklock_core::strategy::{Dependency, Locks, Strategy};
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::redis::redlock::RedLockBackend;
use stocklock_locks::sql::SqlBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{LockGuard, LockManager, ManagerBuilder, ReleaseOutcome};

use crate::config::{DatabaseConfig, MASTERS_MAX, ServicesConfig};
use crate::metrics::LockMetrics;

mod admin;

use admin::LockAdmins;

/// The locks of one replica.
#[derive(Debug, Clone)]
pub struct LockServers {
    /// The locks, by strategy.
    pub locks: Locks,
    /// Elects one replica among several, in the database.
    pub(crate) leaders: LockManager,
    /// The same locks, to look into them.
    pub(crate) admins: LockAdmins,
    /// Also in `locks`; kept to check its settings.
    redis: Option<RedisBackend>,
    /// The same.
    masters: Option<RedLockBackend>,
}

impl LockServers {
    /// Locks on the configured servers, and in the database under the name of this replica. Does not
    /// connect. No deduction holds a lock for longer than `max_hold`.
    ///
    /// # Errors
    /// A sentence that names the variable with the wrong value.
    pub fn new(
        database: &DatabaseConfig,
        services: &ServicesConfig,
        replica: &str,
        max_hold: Duration,
        metrics: &LockMetrics,
    ) -> Result<Self, String> {
        let lease = services.lock_lease_ms;
        let mut locks = Vec::new();
        let mut admins = LockAdmins::default();
        let mut add = |strategy: Strategy, dependency, variable, builder: ManagerBuilder| {
            let builder = builder.lease(lease).max_hold(max_hold);
            let manager = builder.hooks(metrics.of(strategy.name())).build();
            admins.add(strategy, &manager);
            let lock = ManagedLock {
                strategy,
                dependency,
                variable,
                manager,
                fence: |guard| Some(fence(guard)),
            };
            locks.push((strategy, Arc::new(lock) as Arc<dyn Lock>));
        };
        let variable = Dependency::Database.variable();
        let urls = stocklock_store::urls_of(database.url());
        let urls = urls.map_err(|problem| format!("{variable}: {problem}"))?;
        let builder = SqlBackend::builder(&urls[0]).owner(replica);
        let others = urls[1..].iter();
        let builder = others.fold(builder, |builder, url| builder.alternative(url));
        let backend = builder.build().map_err(|e| format!("{variable}: {e}"))?;
        let leaders = LockManager::builder(backend.clone()).lease(lease).build();
        let manager = LockManager::builder(backend);
        add(Strategy::SqlLock, Dependency::Database, variable, manager);
        let mut redis = None;
        let of_stock = services.redis_url.as_ref();
        let of_stock = of_stock.map(|url| (url, Dependency::Redis.variable()));
        let own = services.lock_redis_url.as_ref();
        if let Some((url, variable)) = own.map(|url| (url, "LOCK_REDIS_URL")).or(of_stock) {
            let mut builder = RedisBackend::builder(url.expose_secret()).prefix("stocklock:lock");
            if let Some(interval) = services.lock_poll_ms {
                builder = builder.polling(interval);
            }
            let backend = builder.build().map_err(|e| format!("{variable}: {e}"))?;
            redis = Some(backend.clone());
            let manager = LockManager::builder(backend);
            add(Strategy::RedisLock, Dependency::Redis, variable, manager);
        }
        if let Some(cluster) = &services.zookeeper_connect {
            let builder = ZooKeeperBackend::builder(cluster)
                .root("/stocklock/locks")
                .session_timeout(lease);
            let backend = builder.clone().build();
            let mut backend = backend.map_err(|e| format!("ZOOKEEPER_CONNECT: {e}"))?;
            if let Some(auth) = &services.zookeeper_auth {
                let builder = builder.auth("digest", auth.expose_secret());
                backend = builder
                    .build()
                    .map_err(|e| format!("ZOOKEEPER_AUTH: {e}"))?;
            }
            let manager = LockManager::builder(backend);
            let server = Dependency::Zookeeper;
            add(Strategy::ZookeeperLock, server, server.variable(), manager);
        }
        let masters = services.redlock_urls.as_ref().map(|urls| {
            let variable = Dependency::RedisMasters.variable();
            redlock(urls.expose_secret(), lease).map_err(|e| format!("{variable}: {e}"))
        });
        let masters = masters.transpose()?;
        if let Some(masters) = &masters {
            let builder = LockManager::builder(masters.clone()).lease(lease);
            let builder = builder.hooks(metrics.of(Strategy::Redlock.name()));
            let manager = builder.max_hold(max_hold).build();
            admins.add(Strategy::Redlock, &manager);
            let lock = ManagedLock {
                strategy: Strategy::Redlock,
                dependency: Dependency::RedisMasters,
                variable: Dependency::RedisMasters.variable(),
                manager,
                fence: |_| None,
            };
            locks.push((Strategy::Redlock, Arc::new(lock)));
        }
        let locks = Locks::new(locks);
        Ok(Self {
            locks,
            leaders,
            admins,
            redis,
            masters,
        })
    }

    /// One sentence for each problem: a server that does not answer, or a setting that can lose
    /// locks. Asks all servers at once, because the replica waits for this before it serves. The
    /// store asks the database.
    pub async fn warnings(&self) -> Vec<String> {
        let servers = self.locks.iter();
        let servers = servers.filter(|lock| lock.dependency() != Dependency::Database);
        let warnings = servers.map(|lock| self.warning(lock));
        let warnings = futures_util::future::join_all(warnings);
        let (warnings, of_masters) = tokio::join!(warnings, self.warnings_of_masters());
        let warnings = warnings.into_iter().flatten();
        warnings.chain(of_masters).collect()
    }

    async fn warnings_of_masters(&self) -> Vec<String> {
        let Some(masters) = &self.masters else {
            return Vec::new();
        };
        let variable = Dependency::RedisMasters.variable();
        let named = |warning| format!("{variable}: {warning}");
        masters.warnings().await.into_iter().map(named).collect()
    }

    async fn warning(&self, lock: &dyn Lock) -> Option<String> {
        let dependency = lock.dependency();
        if let Err(problem) = lock.ping().await {
            let (title, variable) = (dependency.title(), lock.variable());
            return Some(format!(
                "{title}, which {variable} names, does not answer: {problem}"
            ));
        }
        let redis = self.redis.as_ref();
        let redis = redis.filter(|_| dependency == Dependency::Redis)?;
        let checked = redis.maxmemory_policy_warning().await;
        checked.unwrap_or_else(|error| {
            Some(format!(
                "the maxmemory-policy of the Redis that {} names could not be checked: {error}",
                lock.variable()
            ))
        })
    }

    /// Releases all locks, and closes connections and sessions.
    pub async fn close(&self) {
        let closing = self.locks.iter().map(Lock::close);
        tokio::join!(
            futures_util::future::join_all(closing),
            self.leaders.shutdown()
        );
    }
}

/// Locks on the masters of `REDLOCK_URLS`.
fn redlock(urls: &str, lease: Duration) -> Result<RedLockBackend, String> {
    let urls: Vec<_> = urls.split(',').collect();
    let count = urls.len();
    if count.is_multiple_of(2) || count > MASTERS_MAX as usize {
        return Err(format!(
            "expected an odd number of 3 to {MASTERS_MAX} URLs, not {count}"
        ));
    }
    let builder = RedLockBackend::builder(urls).prefix("stocklock:redlock");
    let backend = builder.max_lease(lease).build();
    backend.map_err(|error| error.to_string())
}

/// The fence of a lock with tokens.
fn fence(guard: &LockGuard) -> Fence {
    Fence {
        token: guard.token().get(),
        source: guard.source().into(),
    }
}

/// The locks of a [`LockManager`].
#[derive(Debug)]
struct ManagedLock<T> {
    /// Its name labels the metrics of the locks.
    strategy: Strategy,
    dependency: Dependency,
    variable: &'static str,
    manager: LockManager<T>,
    fence: fn(&LockGuard<T>) -> Option<Fence>,
}

#[async_trait]
impl<T: Debug + 'static> Lock for ManagedLock<T> {
    fn dependency(&self) -> Dependency {
        self.dependency
    }

    fn variable(&self) -> &'static str {
        self.variable
    }

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn HeldLock>, LockError> {
        use stocklock_locks::LockError as Cause;
        let lock = self.manager.lock(name).label(self.strategy.name());
        let acquired = lock.wait(wait).acquire().await;
        let guard = acquired.map_err(|error| match &error {
            Cause::WaitLimit { .. } => LockError::WaitLimit(error.into()),
            Cause::Unavailable(cause) if cause.is_permanent() => LockError::Refused(error.into()),
            _ => LockError::Unavailable(error.into()),
        })?;
        let fence = (self.fence)(&guard);
        Ok(Box::new(Held { guard, fence }))
    }

    async fn ping(&self) -> Result<(), String> {
        self.manager.ping().await.map_err(|error| error.to_string())
    }

    async fn close(&self) {
        self.manager.shutdown().await;
    }
}

/// A lock that the manager acquired.
#[derive(Debug)]
struct Held<T> {
    guard: LockGuard<T>,
    fence: Option<Fence>,
}

#[async_trait]
impl<T: Debug + 'static> HeldLock for Held<T> {
    fn fence(&self) -> Option<Fence> {
        self.fence.clone()
    }

    fn is_lost(&self) -> bool {
        self.guard.check().is_err()
    }

    async fn release(self: Box<Self>) {
        if let ReleaseOutcome::Unconfirmed { .. } = self.guard.release().await {
            tracing::debug!("the lock server has not confirmed a release; it will be retried");
        }
    }
}
