//! The locks of one replica: a manager for each service that the configuration names.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use stocklock_locks::backend::Backend;
use stocklock_locks::redis::RedisBackend;
use stocklock_locks::zookeeper::ZooKeeperBackend;
use stocklock_locks::{BackendError, LockManager};

use super::lock::{Lock, ManagedLock};
use super::lock_meter::LockMeter;
use super::{Service, Services, Strategy};
use crate::metrics::Metrics;

/// Where the services are, and how long a lock lives there without renewal.
#[derive(Debug, Clone, Copy)]
pub struct LockSettings<'a> {
    /// The Redis, if there is one.
    pub redis_url: Option<&'a SecretString>,
    /// The `ZooKeeper` ensemble, if there is one.
    pub zookeeper_connect: Option<&'a str>,
    /// How long others wait after a holder has vanished; for `ZooKeeper` the session's time-out.
    pub lease: Duration,
    /// The longest that one deduction may hold a lock.
    pub max_hold: Duration,
}

/// The locks that this replica can take.
#[derive(Debug, Clone, Default)]
pub struct Locks {
    redis: Option<Arc<dyn Lock>>,
    zookeeper: Option<Arc<dyn Lock>>,
    /// For the question whether it may forget locks.
    redis_backend: Option<RedisBackend>,
}

impl Locks {
    /// Locks on the services that the settings name; nothing is connected yet.
    ///
    /// # Errors
    /// A sentence that names the variable whose value makes no sense.
    pub fn new(settings: &LockSettings<'_>, metrics: &Arc<Metrics>) -> Result<Self, String> {
        let redis = settings
            .redis_url
            .map(|url| {
                RedisBackend::builder(url.expose_secret())
                    .prefix("stocklock:lock")
                    .build()
            })
            .transpose()
            .map_err(|error| wrong(Service::Redis, &error))?;
        let zookeeper = settings
            .zookeeper_connect
            .map(|cluster| {
                ZooKeeperBackend::builder(cluster)
                    .root("/stocklock/locks")
                    .session_timeout(settings.lease)
                    .build()
            })
            .transpose()
            .map_err(|error| wrong(Service::Zookeeper, &error))?;
        let strategies = (Strategy::RedisLock.name(), Strategy::ZookeeperLock.name());
        Ok(Self {
            redis: redis
                .clone()
                .map(|backend| managed(Service::Redis, strategies.0, backend, settings, metrics)),
            zookeeper: zookeeper.map(|backend| {
                managed(Service::Zookeeper, strategies.1, backend, settings, metrics)
            }),
            redis_backend: redis,
        })
    }

    /// One lock in the place of the service's own; for tests.
    #[must_use]
    pub fn of(lock: Arc<dyn Lock>) -> Self {
        let mut locks = Self::default();
        match lock.service() {
            Service::Redis => locks.redis = Some(lock),
            Service::Zookeeper => locks.zookeeper = Some(lock),
            Service::Redlock => {}
        }
        locks
    }

    /// The lock of that service.
    pub(super) fn get(&self, service: Service) -> Option<&dyn Lock> {
        match service {
            Service::Redis => self.redis.as_deref(),
            Service::Zookeeper => self.zookeeper.as_deref(),
            Service::Redlock => None,
        }
    }

    /// The services that there are locks of.
    #[must_use]
    pub fn services(&self) -> Services {
        Services {
            redis: self.redis.is_some(),
            zookeeper: self.zookeeper.is_some(),
        }
    }

    /// What is wrong with the services, a sentence for each: one that does not answer, or a setting
    /// under which a lock may be lost for nothing.
    pub async fn warnings(&self) -> Vec<String> {
        let redis = async {
            match (absence(self.redis.as_deref()).await, &self.redis_backend) {
                // Where there is no answer now, the ping has just had one.
                (None, Some(redis)) => redis.maxmemory_policy_warning().await.ok().flatten(),
                (absence, _) => absence,
            }
        };
        let (redis, zookeeper) = tokio::join!(redis, absence(self.zookeeper.as_deref()));
        redis.into_iter().chain(zookeeper).collect()
    }

    /// Gives everything up, and closes connections and sessions.
    pub async fn close(&self) {
        let close = async |lock: &Option<Arc<dyn Lock>>| {
            if let Some(lock) = lock {
                lock.close().await;
            }
        };
        tokio::join!(close(&self.redis), close(&self.zookeeper));
    }
}

/// That a service does not answer, in a sentence.
async fn absence(lock: Option<&dyn Lock>) -> Option<String> {
    let lock = lock?;
    let problem = lock.ping().await.err()?;
    let (title, variable) = (lock.service().title(), lock.service().variable());
    Some(format!(
        "{title}, which {variable} names, does not answer: {problem}"
    ))
}

fn managed(
    service: Service,
    strategy: &'static str,
    backend: impl Backend,
    settings: &LockSettings<'_>,
    metrics: &Arc<Metrics>,
) -> Arc<dyn Lock> {
    let manager = LockManager::builder(backend)
        .lease(settings.lease)
        .max_hold(settings.max_hold)
        .hooks(LockMeter::new(Arc::clone(metrics)))
        .build();
    Arc::new(ManagedLock::new(service, strategy, manager))
}

fn wrong(service: Service, error: &BackendError) -> String {
    format!("{}: {error}", service.variable())
}
