//! A private Redis per test, behind a proxy, under real time.

use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, connect_to_redis};

use super::{Faults, NumberFaults, Rig};

pub(crate) struct RedisRig {
    pub(crate) server: PrivateServer,
    pub(crate) proxy: Proxy,
}

impl RedisRig {
    pub(crate) async fn start() -> Self {
        Self::before(PrivateServer::redis(&[]).await).await
    }

    pub(crate) async fn before(server: PrivateServer) -> Self {
        let proxy = Proxy::to(server.address()).await;
        Self { server, proxy }
    }

    /// Opens a connection that does not use the proxy.
    pub(crate) async fn direct(&self) -> MultiplexedConnection {
        let url = format!("redis://{}/", self.server.address());
        connect_to_redis(&url).await.unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.proxy.address())
    }

    /// Returns the channels that have subscribers.
    pub(crate) async fn channels(&self) -> Vec<String> {
        let channels = redis::cmd("PUBSUB")
            .arg("CHANNELS")
            .query_async(&mut self.direct().await)
            .await;
        channels.unwrap()
    }

    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        let keys = redis::cmd("KEYS")
            .arg(pattern)
            .query_async(&mut self.direct().await)
            .await;
        keys.unwrap()
    }
}

#[async_trait]
impl Rig for RedisRig {
    const LEASE: Duration = Duration::from_secs(1);
    const MOMENT: Duration = Duration::from_millis(500);
    const STEP: Duration = Duration::from_micros(50);

    type Backend = RedisBackend;
    type Clock = BootClock;

    fn backend(&self) -> RedisBackend {
        let backend = RedisBackend::builder(&self.url()).response_limit(Duration::from_millis(500));
        backend.build().unwrap()
    }

    fn clock(&self) -> BootClock {
        BootClock
    }

    async fn left(&self) -> usize {
        let mut left = self.keys("lock{*}").await.len();
        let mut direct = self.direct().await;
        for pattern in ["lock{*}:holders", "lock{*}:waiters"] {
            for key in self.keys(pattern).await {
                let count = redis::cmd("ZCARD")
                    .arg(&key)
                    .query_async::<usize>(&mut direct)
                    .await;
                left += count.unwrap();
            }
        }
        left
    }
}

#[async_trait]
impl Faults for RedisRig {
    async fn take_away(&self, name: &str) {
        let key = format!("lock{{{name}}}");
        let deleted = redis::cmd("DEL")
            .arg(key)
            .query_async(&mut self.direct().await)
            .await;
        assert_eq!(deleted, Ok(1));
    }

    fn outsider(&self) -> RedisBackend {
        let url = format!("redis://{}/", self.server.address());
        RedisBackend::new(&url).unwrap()
    }

    fn proxies(&self) -> Vec<&Proxy> {
        vec![&self.proxy]
    }

    async fn lose_acquire_answer(&self, _: &str) {
        self.proxy.cut_after(b"EVALSHA", 1);
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        vec![&self.server]
    }
}

#[async_trait]
impl NumberFaults for RedisRig {
    async fn lose_change_answer(&self, _: i64) {
        self.proxy.cut_after(b"EVALSHA", 1);
    }
}
