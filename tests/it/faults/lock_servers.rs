//! A test's own places for locks on the Redis and the ZooKeeper that the tests share, read without
//! the service.

use std::time::Duration;

use stocklock::strategy::{Available, Dependency, Homes, Strategy};
use zookeeper_client::Client;

use super::until_within;
use crate::redis_home::command;
use crate::support::services::{TestRedis, TestZooKeeper, fresh_redis, fresh_zookeeper};

/// Far less than the default lease of ten seconds, and far more than a release takes.
const AT_ONCE: Duration = Duration::from_secs(3);

/// All strategies for stock in SQL.
pub(super) fn strategies() -> impl Iterator<Item = Strategy> {
    let available = Available::new([Dependency::Redis, Dependency::Zookeeper]);
    let strategies: Vec<_> = available.strategies().collect();
    let in_sql = |strategy: &Strategy| strategy.card().homes != Homes::Redis;
    strategies.into_iter().filter(in_sql)
}

/// One test's place on one service.
#[derive(Debug)]
pub(super) enum LockPlace {
    Redis(TestRedis),
    ZooKeeper(TestZooKeeper),
}

impl LockPlace {
    pub(super) async fn fresh(service: Dependency) -> Self {
        match service {
            Dependency::Redis => Self::Redis(fresh_redis().await),
            Dependency::Zookeeper => Self::ZooKeeper(fresh_zookeeper().await),
            Dependency::Database => panic!("no strategy locks in the database"),
        }
    }

    /// One on each service.
    pub(super) async fn both() -> [Self; 2] {
        let redis = Self::fresh(Dependency::Redis).await;
        [redis, Self::fresh(Dependency::Zookeeper).await]
    }

    /// The value of the service's variable.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Redis(redis) => &redis.url,
            Self::ZooKeeper(zookeeper) => &zookeeper.connect,
        }
    }

    /// How many locks are held here; on ZooKeeper, waiting clients count, too.
    pub(super) async fn held(&self) -> usize {
        match self {
            // The key of a lock ends with its name in braces; keys of tokens and tombstones do not.
            Self::Redis(redis) => {
                let keys: Vec<String> = command(&redis.url, &["KEYS", "stocklock:lock{*}"]).await;
                keys.len()
            }
            Self::ZooKeeper(zookeeper) => {
                let held = held_on_zookeeper(&zookeeper.connect).await;
                held.expect("ZooKeeper answers")
            }
        }
    }

    /// The lease that the service grants if this one is asked for: ZooKeeper has limits.
    pub(super) async fn granted(&self, lease: Duration) -> Duration {
        match self {
            Self::Redis(_) => lease,
            Self::ZooKeeper(zookeeper) => {
                let connector = Client::connector().with_session_timeout(lease);
                let client = connector.connect(&zookeeper.connect).await;
                client.expect("ZooKeeper answers").session_timeout()
            }
        }
    }
}

/// The flags that connect a replica to these places.
pub(super) fn flags(places: &[LockPlace]) -> Vec<String> {
    let flag = |place: &LockPlace| match place {
        LockPlace::Redis(redis) => format!("--redis-url={}", redis.url),
        LockPlace::ZooKeeper(zookeeper) => format!("--zookeeper-connect={}", zookeeper.connect),
    };
    places.iter().map(flag).collect()
}

/// Returns when no lock is held or waited for, which may be a moment after the answer.
///
/// # Panics
/// If that takes so long that a lease must have expired.
pub(super) async fn assert_locks_released(places: &[LockPlace]) {
    for place in places {
        let free = || async { place.held().await == 0 };
        until_within(AT_ONCE, "every lock is released", free).await;
    }
}

/// The strategy that takes its locks there.
pub(super) fn strategy(service: Dependency) -> Strategy {
    match service {
        Dependency::Redis => Strategy::RedisLock,
        Dependency::Zookeeper => Strategy::ZookeeperLock,
        Dependency::Database => panic!("no strategy locks in the database"),
    }
}

async fn held_on_zookeeper(connect: &str) -> Result<usize, zookeeper_client::Error> {
    const ROOT: &str = "/stocklock/locks";
    let client = Client::connect(connect).await?;
    let list = async |path: &str| match client.list_children(path).await {
        // No lock was acquired yet, or the server has removed an empty container.
        Err(zookeeper_client::Error::NoNode) => Ok(Vec::new()),
        children => children,
    };
    let mut held = 0;
    for lock in list(ROOT).await? {
        held += list(&format!("{ROOT}/{lock}")).await?.len();
    }
    Ok(held)
}
