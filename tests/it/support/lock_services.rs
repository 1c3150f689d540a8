//! A Redis database, databases on several Redis masters, and a ZooKeeper node for one test, for the
//! strategies with a lock.

use std::time::Duration;

use super::services::{
    TestMasters, TestRedis, TestZooKeeper, fresh_masters, fresh_redis, fresh_zookeeper,
};

/// The default of `LOCK_LEASE_MS`: the masters have been up for longer.
const LEASE: Duration = Duration::from_secs(10);

/// An empty Redis database, empty databases on Redis masters, and an empty ZooKeeper node.
#[derive(Debug)]
pub(crate) struct LockServices {
    redis: TestRedis,
    masters: TestMasters,
    redlock_urls: String,
    zookeeper: TestZooKeeper,
    flags: [String; 3],
}

impl LockServices {
    /// Creates all, with three masters.
    pub(crate) async fn fresh() -> Self {
        Self::with_masters(3).await
    }

    /// Creates all, with this many masters.
    pub(crate) async fn with_masters(count: usize) -> Self {
        let masters = Box::pin(fresh_masters(count, LEASE));
        let (redis, masters, zookeeper) = tokio::join!(fresh_redis(), masters, fresh_zookeeper());
        let redlock_urls = masters.joined();
        let flags = [
            format!("--redis-url={}", redis.url),
            format!("--redlock-urls={redlock_urls}"),
            format!("--zookeeper-connect={}", zookeeper.connect),
        ];
        Self {
            redis,
            masters,
            redlock_urls,
            zookeeper,
            flags,
        }
    }

    /// Flags that make a replica use them.
    pub(crate) fn flags(&self) -> [&str; 3] {
        self.flags.each_ref().map(|flag| &**flag)
    }

    /// Variables that make a process use them.
    pub(crate) fn variables(&self) -> [(&str, &str); 3] {
        [
            ("REDIS_URL", self.redis_url()),
            ("REDLOCK_URLS", self.redlock_urls()),
            ("ZOOKEEPER_CONNECT", self.zookeeper_connect()),
        ]
    }

    pub(crate) fn redis_url(&self) -> &str {
        &self.redis.url
    }

    pub(crate) fn redlock_urls(&self) -> &str {
        &self.redlock_urls
    }

    pub(crate) fn masters(&self) -> &[String] {
        &self.masters.urls
    }

    pub(crate) fn zookeeper_connect(&self) -> &str {
        &self.zookeeper.connect
    }
}
