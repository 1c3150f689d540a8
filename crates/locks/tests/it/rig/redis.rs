//! A private Redis per test, behind a proxy, under real time.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue};
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, connect_to_redis};

use super::{Faults, NumberFaults, Rig, Served};

/// A command whose words contain no space.
pub(crate) fn command(line: &str) -> Cmd {
    let mut words = line.split(' ');
    let mut built = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        built.arg(word);
    });
    built
}

pub(crate) async fn run<T: FromRedisValue>(to: &mut MultiplexedConnection, line: &str) -> T {
    command(line).query_async(to).await.expect(line)
}

/// A Redis server and the proxy in front of it.
pub(crate) struct RedisRig {
    /// Does not lead through the proxy.
    pub(crate) direct: String,
    url: String,
    pub(crate) proxy: Proxy,
    /// `None` if other tests use the same server.
    server: Option<PrivateServer>,
}

impl RedisRig {
    pub(crate) async fn start() -> Self {
        Self::before(PrivateServer::redis(&[]).await).await
    }

    pub(crate) async fn before(server: PrivateServer) -> Self {
        Self::at(server.url().to_owned(), Some(server)).await
    }

    pub(crate) async fn at(direct: String, server: Option<PrivateServer>) -> Self {
        let (proxy, url) = Proxy::before(&direct).await;
        Self {
            direct,
            url,
            proxy,
            server,
        }
    }

    pub(crate) fn server(&self) -> &PrivateServer {
        self.server.as_ref().expect("a private server")
    }

    /// Opens a connection that does not use the proxy.
    pub(crate) async fn direct(&self) -> MultiplexedConnection {
        connect_to_redis(&self.direct).await.unwrap()
    }

    /// The URL through the proxy.
    pub(crate) fn url(&self) -> String {
        self.url.clone()
    }

    pub(crate) async fn run<T: FromRedisValue>(&self, line: &str) -> T {
        run(&mut self.direct().await, line).await
    }

    pub(crate) async fn channels(&self) -> Vec<String> {
        self.run("PUBSUB CHANNELS").await
    }

    /// How often clients have sent each command, executed or not.
    pub(crate) async fn calls(&self) -> BTreeMap<String, u64> {
        let stats: String = self.run("INFO commandstats").await;
        let calls = |line: &str| {
            let (command, fields) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let counts = fields.split(',').filter_map(|field| {
                let count = field.strip_prefix("calls=");
                count.or_else(|| field.strip_prefix("rejected_calls="))
            });
            let sum = counts.map(|count| count.parse::<u64>().unwrap()).sum();
            Some((command.to_owned(), sum))
        };
        stats.lines().filter_map(calls).collect()
    }

    /// How many scripts clients have sent, by hash or as text.
    pub(crate) async fn scripts(&self) -> u64 {
        let mut calls = self.calls().await;
        calls.retain(|command, _| command.starts_with("eval"));
        calls.into_values().sum()
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
        RedisBackend::new(&self.direct).unwrap()
    }

    fn proxies(&self) -> Vec<&Proxy> {
        vec![&self.proxy]
    }

    async fn lose_acquire_answer(&self, _: &str) {
        self.proxy.cut_after(b"EVALSHA", 1);
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        vec![self.server()]
    }
}

#[async_trait]
impl Served for RedisRig {
    fn url(&self) -> String {
        self.url()
    }

    /// A waiter has no place in a queue, but a subscription.
    async fn has_waiter(&self, name: &str) -> bool {
        self.channels().await == [format!("lock{{{name}}}")]
    }
}

#[async_trait]
impl NumberFaults for RedisRig {
    async fn lose_change_answer(&self, _: i64) {
        self.proxy.cut_after(b"EVALSHA", 1);
    }
}
