//! The Redis and the ZooKeeper of one test's own, for the strategies with a lock.

use super::services::{TestRedis, TestZooKeeper, fresh_redis, fresh_zookeeper};

/// A place on each; both go when this is dropped.
#[derive(Debug)]
pub(crate) struct LockServices {
    redis: TestRedis,
    zookeeper: TestZooKeeper,
}

impl LockServices {
    /// Finds an empty place on each.
    pub(crate) async fn fresh() -> Self {
        let (redis, zookeeper) = tokio::join!(fresh_redis(), fresh_zookeeper());
        Self { redis, zookeeper }
    }

    /// The flags that lead a replica there.
    pub(crate) fn flags(&self) -> [String; 2] {
        [
            format!("--redis-url={}", self.redis.url),
            format!("--zookeeper-connect={}", self.zookeeper.connect),
        ]
    }

    /// `REDIS_URL`.
    pub(crate) fn redis_url(&self) -> &str {
        &self.redis.url
    }

    /// `ZOOKEEPER_CONNECT`.
    pub(crate) fn zookeeper_connect(&self) -> &str {
        &self.zookeeper.connect
    }
}
