//! A Redis database and a ZooKeeper node for one test, for the strategies with a lock.

use super::services::{TestRedis, TestZooKeeper, fresh_redis, fresh_zookeeper};

/// An empty Redis database and ZooKeeper node; both are deleted on drop.
#[derive(Debug)]
pub(crate) struct LockServices {
    redis: TestRedis,
    zookeeper: TestZooKeeper,
}

impl LockServices {
    /// Creates both.
    pub(crate) async fn fresh() -> Self {
        let (redis, zookeeper) = tokio::join!(fresh_redis(), fresh_zookeeper());
        Self { redis, zookeeper }
    }

    /// Flags that make a replica use them.
    pub(crate) fn flags(&self) -> [String; 2] {
        [
            format!("--redis-url={}", self.redis.url),
            format!("--zookeeper-connect={}", self.zookeeper.connect),
        ]
    }

    /// The value of `REDIS_URL`.
    pub(crate) fn redis_url(&self) -> &str {
        &self.redis.url
    }

    /// The value of `ZOOKEEPER_CONNECT`.
    pub(crate) fn zookeeper_connect(&self) -> &str {
        &self.zookeeper.connect
    }
}
