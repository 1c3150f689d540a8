//! A private Redis per test, behind a proxy, under real time.

use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, connect_to_redis};

use super::{Faults, NumberFaults, Rig};

/// A command whose words contain no space.
pub(crate) fn command(line: &str) -> Cmd {
    let mut words = line.split(' ');
    let mut built = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        built.arg(word);
    });
    built
}

/// Sends such a command.
pub(crate) async fn run<T: FromRedisValue>(to: &mut MultiplexedConnection, line: &str) -> T {
    command(line).query_async(to).await.expect(line)
}

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

    /// Sends a command to the server.
    pub(crate) async fn run<T: FromRedisValue>(&self, line: &str) -> T {
        run(&mut self.direct().await, line).await
    }

    /// Returns the channels that have subscribers.
    pub(crate) async fn channels(&self) -> Vec<String> {
        self.run("PUBSUB CHANNELS").await
    }

    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        self.run(&format!("KEYS {pattern}")).await
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

    async fn left(&self) -> usize {
        let mut left = self.keys("lock{*}").await.len();
        let mut direct = self.direct().await;
        for pattern in ["lock{*}:holders", "lock{*}:waiters"] {
            for key in self.keys(pattern).await {
                left += run::<usize>(&mut direct, &format!("ZCARD {key}")).await;
            }
        }
        left
    }
}

#[async_trait]
impl Faults for RedisRig {
    async fn take_away(&self, name: &str) {
        let deleted: i64 = self.run(&format!("DEL lock{{{name}}}")).await;
        assert_eq!(deleted, 1);
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
