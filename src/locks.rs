//! The distributed locks of one replica: a manager for each lock server that is configured.

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

/// Where the lock servers are, and how long a lock lives there without renewal.
#[derive(Debug, Clone, Copy)]
pub struct LockSettings<'a> {
    /// The Redis, if there is one.
    pub redis_url: Option<&'a SecretString>,
    /// The `ZooKeeper` ensemble, if there is one.
    pub zookeeper_connect: Option<&'a str>,
    /// How long other clients wait after a holder has vanished; on `ZooKeeper` the session timeout.
    pub lease: Duration,
    /// The longest time for which one deduction may hold a lock.
    pub max_hold: Duration,
}

/// The locks of one replica, and the Redis among their servers.
#[derive(Debug, Clone, Default)]
pub struct LockServers {
    locks: Locks,
    redis: Option<RedisBackend>,
}

impl LockServers {
    /// Locks on the servers that the settings name. Nothing is connected yet.
    ///
    /// # Errors
    /// A sentence that names the variable with the wrong value.
    pub fn new(settings: &LockSettings<'_>, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let mut locks = Vec::new();
        let redis = settings.redis_url.map(|url| {
            let builder = RedisBackend::builder(url.expose_secret()).prefix("stocklock:lock");
            builder
                .build()
                .map_err(|error| wrong(Dependency::Redis, &error))
        });
        let redis = redis.transpose()?;
        if let Some(backend) = redis.clone() {
            locks.push(managed(
                Strategy::RedisLock,
                Dependency::Redis,
                backend,
                settings,
                metrics,
            ));
        }
        if let Some(cluster) = settings.zookeeper_connect {
            let builder = ZooKeeperBackend::builder(cluster)
                .root("/stocklock/locks")
                .session_timeout(settings.lease);
            let backend = builder
                .build()
                .map_err(|error| wrong(Dependency::Zookeeper, &error))?;
            let (strategy, dependency) = (Strategy::ZookeeperLock, Dependency::Zookeeper);
            locks.push(managed(strategy, dependency, backend, settings, metrics));
        }
        let locks = Locks::new(locks);
        Ok(Self { locks, redis })
    }

    /// The locks, by strategy.
    #[must_use]
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// What is wrong with the servers, a sentence for each: no answer, or a setting that can lose
    /// locks.
    pub async fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for lock in self.locks.iter() {
            if let Err(problem) = lock.ping().await {
                let (title, variable) = (lock.dependency().title(), lock.dependency().variable());
                warnings.push(format!(
                    "{title}, which {variable} names, does not answer: {problem}"
                ));
            } else if lock.dependency() == Dependency::Redis
                && let Some(redis) = &self.redis
            {
                // If Redis does not answer now, it answered the ping a moment ago.
                warnings.extend(redis.maxmemory_policy_warning().await.ok().flatten());
            }
        }
        warnings
    }

    /// Releases all locks, and closes connections and sessions.
    pub async fn close(&self) {
        let closing = self.locks.iter().map(|lock| lock.close());
        futures_util::future::join_all(closing).await;
    }
}

fn managed(
    strategy: Strategy,
    dependency: Dependency,
    backend: impl Backend,
    settings: &LockSettings<'_>,
    metrics: &Arc<Metrics>,
) -> (Strategy, Arc<dyn Lock>) {
    let manager = LockManager::builder(backend)
        .lease(settings.lease)
        .max_hold(settings.max_hold)
        .hooks(LockMeter::new(Arc::clone(metrics)))
        .build();
    let lock = ManagedLock {
        dependency,
        label: strategy.name(),
        manager,
    };
    (strategy, Arc::new(lock))
}

fn wrong(dependency: Dependency, error: &BackendError) -> String {
    format!("{}: {error}", dependency.variable())
}

/// The locks of a [`LockManager`].
#[derive(Debug)]
struct ManagedLock {
    dependency: Dependency,
    /// The strategy's name, under which metrics count its locks.
    label: &'static str,
    manager: LockManager,
}

#[async_trait]
impl Lock for ManagedLock {
    fn dependency(&self) -> Dependency {
        self.dependency
    }

    async fn acquire(&self, name: &str, wait: Duration) -> Result<Box<dyn HeldLock>, LockError> {
        let lock = self.manager.lock(name).label(self.label).wait(wait);
        match lock.acquire().await {
            Ok(guard) => Ok(Box::new(Held(guard))),
            Err(error @ stocklock_locks::LockError::WaitLimit { .. }) => {
                Err(LockError::WaitLimit(error.into()))
            }
            Err(error) => Err(match &error {
                stocklock_locks::LockError::Unavailable(cause) if cause.is_permanent() => {
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
            tracing::debug!("the lock server has not confirmed a release yet; it is repeated");
        }
    }
}
