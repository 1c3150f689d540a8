//! The distributed locks of one replica: one manager for each configured lock server.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};
use stocklock_core::ports::{HeldLock, Lock, LockError, Locks};
use stocklock_core::stock::Fence;
use stocklock_core::strategy::{Dependency, Strategy};
use stocklock_locks::backend::Backend;
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{BackendError, LockGuard, LockManager, ReleaseOutcome};

mod meter;

use crate::metrics::Metrics;
use meter::LockMeter;

/// The lock servers, and the times of their locks.
#[derive(Debug, Clone, Copy)]
pub struct LockSettings<'a> {
    /// The Redis, if there is one.
    pub redis_url: Option<&'a SecretString>,
    /// The `ZooKeeper` ensemble, if there is one.
    pub zookeeper_connect: Option<&'a str>,
    /// Time after which the lock of a crashed holder expires; on `ZooKeeper` the session timeout.
    pub lease: Duration,
    /// Maximum time for which one deduction may hold a lock.
    pub max_hold: Duration,
}

/// The locks of one replica.
#[derive(Debug, Clone, Default)]
pub struct LockServers {
    locks: Locks,
    /// Also in `locks`; here to check its settings.
    redis: Option<RedisBackend>,
}

impl LockServers {
    /// Locks on the configured servers. Does not connect.
    ///
    /// # Errors
    /// A sentence that names the variable with the wrong value.
    pub fn new(settings: &LockSettings<'_>, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let mut locks = Vec::new();
        let redis = settings.redis_url.map(|url| {
            let builder = RedisBackend::builder(url.expose_secret()).prefix("stocklock:lock");
            let backend = builder.build();
            backend.map_err(|error| wrong_setting(Dependency::Redis, &error))
        });
        let redis = redis.transpose()?;
        if let Some(backend) = redis.clone() {
            let server = (Strategy::RedisLock, Dependency::Redis);
            let lock = ManagedLock::new(server, backend, settings, metrics);
            locks.push((Strategy::RedisLock, Arc::new(lock) as _));
        }
        if let Some(cluster) = settings.zookeeper_connect {
            let builder = ZooKeeperBackend::builder(cluster)
                .root("/stocklock/locks")
                .session_timeout(settings.lease);
            let backend = builder.build();
            let backend = backend.map_err(|error| wrong_setting(Dependency::Zookeeper, &error))?;
            let server = (Strategy::ZookeeperLock, Dependency::Zookeeper);
            let lock = ManagedLock::new(server, backend, settings, metrics);
            locks.push((Strategy::ZookeeperLock, Arc::new(lock) as _));
        }
        let locks = Locks::new(locks);
        Ok(Self { locks, redis })
    }

    /// The locks, by strategy.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// One sentence for each problem: a server that does not answer, or a setting that can lose
    /// locks. Asks all servers at once, because the replica waits for this before it serves.
    pub async fn warnings(&self) -> Vec<String> {
        let warnings = self.locks.iter().map(|lock| self.warning(lock));
        let warnings = futures_util::future::join_all(warnings).await;
        warnings.into_iter().flatten().collect()
    }

    async fn warning(&self, lock: &dyn Lock) -> Option<String> {
        let dependency = lock.dependency();
        if let Err(problem) = lock.ping().await {
            let (title, variable) = (dependency.title(), dependency.variable());
            return Some(format!(
                "{title}, which {variable} names, does not answer: {problem}"
            ));
        }
        let redis = self
            .redis
            .as_ref()
            .filter(|_| dependency == Dependency::Redis)?;
        // An error here is rare: Redis has just answered the ping.
        redis.maxmemory_policy_warning().await.ok().flatten()
    }

    /// Releases all locks, and closes connections and sessions.
    pub async fn close(&self) {
        let closing = self.locks.iter().map(Lock::close);
        futures_util::future::join_all(closing).await;
    }
}

fn wrong_setting(dependency: Dependency, error: &BackendError) -> String {
    format!("{}: {error}", dependency.variable())
}

/// The locks of a [`LockManager`].
#[derive(Debug)]
struct ManagedLock {
    /// Its name labels the metrics of the locks.
    strategy: Strategy,
    dependency: Dependency,
    manager: LockManager,
}

impl ManagedLock {
    fn new(
        (strategy, dependency): (Strategy, Dependency),
        backend: impl Backend,
        settings: &LockSettings<'_>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let manager = LockManager::builder(backend)
            .lease(settings.lease)
            .max_hold(settings.max_hold)
            .hooks(LockMeter::new(Arc::clone(metrics)))
            .build();
        Self {
            strategy,
            dependency,
            manager,
        }
    }
}

#[async_trait]
impl Lock for ManagedLock {
    fn dependency(&self) -> Dependency {
        self.dependency
    }

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn HeldLock>, LockError> {
        use stocklock_locks::LockError as Cause;
        let lock = self.manager.lock(name).label(self.strategy.name());
        match lock.wait(wait).acquire().await {
            Ok(guard) => Ok(Box::new(Held(guard))),
            Err(error) => Err(match &error {
                Cause::WaitLimit { .. } => LockError::WaitLimit(error.into()),
                Cause::Unavailable(cause) if cause.is_permanent() => {
                    LockError::Refused(error.into())
                }
                _ => LockError::Unavailable(error.into()),
            }),
        }
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
struct Held(LockGuard);

#[async_trait]
impl HeldLock for Held {
    fn fence(&self) -> Fence {
        Fence {
            token: self.0.token().get(),
            source: self.0.source().into(),
        }
    }

    fn is_lost(&self) -> bool {
        self.0.check().is_err()
    }

    async fn release(self: Box<Self>) {
        if let ReleaseOutcome::Unconfirmed { .. } = self.0.release().await {
            tracing::debug!("the lock server has not confirmed a release; it will be retried");
        }
    }
}
