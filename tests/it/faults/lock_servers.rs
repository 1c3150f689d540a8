//! Where the locks of a test are: a place of its own on the Redis and the ZooKeeper that the tests
//! share, read past the service.

use std::time::Duration;

use stocklock::strategy::{Service, Services, Strategy};
use zookeeper_client::Client;

use super::until;
use crate::support::services::{TestRedis, TestZooKeeper, fresh_redis, fresh_zookeeper};

/// The strategies that can be used on stock in SQL with both services.
pub(super) fn strategies() -> impl Iterator<Item = Strategy> {
    let both = Services {
        redis: true,
        zookeeper: true,
    };
    Strategy::available(both).filter(|strategy| strategy.card().home != "redis")
}

/// Far less than a lease, and far more than a release takes.
const AT_ONCE: Duration = Duration::from_secs(3);

/// One test's place on one service.
#[derive(Debug)]
pub(super) enum LockPlace {
    Redis(TestRedis),
    ZooKeeper(TestZooKeeper),
}

impl LockPlace {
    pub(super) async fn fresh(service: Service) -> Self {
        match service {
            Service::Redis => Self::Redis(fresh_redis().await),
            Service::Zookeeper => Self::ZooKeeper(fresh_zookeeper().await),
            Service::Redlock => panic!("no strategy uses it yet"),
        }
    }

    /// One on each.
    pub(super) async fn both() -> [Self; 2] {
        [
            Self::fresh(Service::Redis).await,
            Self::fresh(Service::Zookeeper).await,
        ]
    }

    /// What the service's variable is to say.
    pub(super) fn url(&self) -> &str {
        match self {
            Self::Redis(redis) => &redis.url,
            Self::ZooKeeper(zookeeper) => &zookeeper.connect,
        }
    }

    /// How many locks are held here; on ZooKeeper, those who wait for one count too.
    pub(super) async fn held(&self) -> usize {
        match self {
            Self::Redis(redis) => held_on_redis(&redis.url).await.expect("Redis answers"),
            Self::ZooKeeper(zookeeper) => held_on_zookeeper(&zookeeper.connect)
                .await
                .expect("ZooKeeper answers"),
        }
    }

    /// What becomes of a lease of this length: a ZooKeeper has bounds of its own.
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

/// The flags that lead a replica to these places.
pub(super) fn flags(places: &[LockPlace]) -> Vec<String> {
    let flag = |place: &LockPlace| match place {
        LockPlace::Redis(redis) => format!("--redis-url={}", redis.url),
        LockPlace::ZooKeeper(zookeeper) => format!("--zookeeper-connect={}", zookeeper.connect),
    };
    places.iter().map(flag).collect()
}

/// Returns when all that is held or waited for is given up, which may take a moment after the
/// answer.
///
/// # Panics
/// When it looks as if a lease of ten seconds, the service's own default, had to end for that.
pub(super) async fn no_lock_is_left(places: &[LockPlace]) {
    for place in places {
        let free = || async { place.held().await == 0 };
        until("every lock is released", AT_ONCE, free).await;
    }
}

/// The strategy whose locks are there.
pub(super) fn strategy(service: Service) -> Strategy {
    match service {
        Service::Redis => Strategy::RedisLock,
        Service::Zookeeper => Strategy::ZookeeperLock,
        Service::Redlock => Strategy::Redlock,
    }
}

/// A lock's own key ends with the name in braces; its token's and its tombstones' go on.
async fn held_on_redis(url: &str) -> redis::RedisResult<usize> {
    let client = redis::Client::open(url)?;
    let mut connection = client.get_multiplexed_async_connection().await?;
    let mut keys = redis::cmd("KEYS");
    keys.arg("stocklock:lock{*}");
    let keys: Vec<String> = keys.query_async(&mut connection).await?;
    Ok(keys.len())
}

async fn held_on_zookeeper(connect: &str) -> Result<usize, zookeeper_client::Error> {
    const ROOT: &str = "/stocklock/locks";
    let client = Client::connect(connect).await?;
    let list = async |path: &str| match client.list_children(path).await {
        // Nobody has asked for a lock yet, or the server has tidied up.
        Err(zookeeper_client::Error::NoNode) => Ok(Vec::new()),
        children => children,
    };
    let mut held = 0;
    for lock in list(ROOT).await? {
        held += list(&format!("{ROOT}/{lock}")).await?.len();
    }
    Ok(held)
}
