//! A Redis Cluster of three masters and three replicas, under real time.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use stocklock_locks::LockManager;
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::RedisBackend;
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::run::unique_name;
use stocklock_testkit::servers::{PrivateServer, RedisCluster, connect_to_redis};

use super::redis::run;
use super::{Faults, NumberFaults, Rig, use_lock};

/// Clients use the host at which they reached a node for the other nodes too.
const SAME_HOST: [&str; 2] = ["--cluster-preferred-endpoint-type", "unknown-endpoint"];

pub(crate) struct ClusterRig {
    cluster: Servers,
    /// In front of each node, at another host with the same port.
    proxies: Vec<Proxy>,
    /// Of the keys of this test.
    pub(crate) prefix: String,
}

enum Servers {
    Shared(&'static RedisCluster),
    Private(RedisCluster),
}

impl ClusterRig {
    /// A cluster that other tests use too.
    pub(crate) async fn start() -> Self {
        Self::with(Servers::Shared(RedisCluster::shared().await), Vec::new())
    }

    /// A cluster of this test, behind proxies.
    pub(crate) async fn start_private() -> Self {
        let cluster = RedisCluster::start(&[RedisCluster::CALM, SAME_HOST].concat()).await;
        let ports = cluster.nodes().iter().map(PrivateServer::port);
        let proxies = join_all(ports.map(Proxy::beside)).await;
        Self::with(Servers::Private(cluster), proxies)
    }

    /// A cluster of this test without proxies, whose masters are replaced about two seconds after they
    /// have failed.
    pub(crate) async fn start_fragile() -> Self {
        Self::with(Servers::Private(RedisCluster::start(&[]).await), Vec::new())
    }

    fn with(cluster: Servers, proxies: Vec<Proxy>) -> Self {
        Self {
            cluster,
            proxies,
            prefix: unique_name(),
        }
    }

    pub(crate) fn cluster(&self) -> &RedisCluster {
        match &self.cluster {
            Servers::Shared(cluster) => cluster,
            Servers::Private(cluster) => cluster,
        }
    }

    /// The URL that clients use: through the proxies, if there are any.
    pub(crate) fn url(&self) -> String {
        let url = self.cluster().url();
        if self.proxies.is_empty() {
            return url;
        }
        url.replace("127.0.0.1", "127.0.0.2")
    }

    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{{{name}}}", self.prefix)
    }

    pub(crate) async fn slot(&self, name: &str) -> u16 {
        self.cluster().slot_of(&self.key(name)).await
    }

    /// The node that has the keys of a lock.
    pub(crate) async fn master(&self, name: &str) -> usize {
        let slot = self.slot(name).await;
        self.cluster().master_of(slot).await
    }

    /// Opens a connection that does not use the proxy.
    pub(crate) async fn direct(&self, node: usize) -> MultiplexedConnection {
        let url = format!("redis://{}", self.cluster().addresses()[node]);
        connect_to_redis(&url).await.unwrap()
    }

    pub(crate) async fn send<T: FromRedisValue>(&self, node: usize, command: &str) -> T {
        run(&mut self.direct(node).await, command).await
    }

    /// The keys of this test, and their masters.
    pub(crate) async fn keys(&self, pattern: &str) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        for master in self.cluster().masters().await {
            let question = format!("KEYS {}{pattern}", self.prefix);
            let keys: Vec<String> = self.send(master, &question).await;
            found.extend(keys.into_iter().map(|key| (master, key)));
        }
        found
    }

    /// The settings of a back end at this URL.
    pub(crate) fn settings(&self, url: &str) -> stocklock_locks::redis::RedisBuilder {
        let settings = RedisBackend::builder(url).prefix(&self.prefix);
        settings.response_limit(Duration::from_millis(500))
    }
}

#[async_trait]
impl Rig for ClusterRig {
    const LEASE: Duration = Duration::from_secs(1);
    const MOMENT: Duration = Duration::from_millis(500);
    const STEP: Duration = Duration::from_micros(50);

    type Backend = RedisBackend;
    type Clock = BootClock;

    fn backend(&self) -> RedisBackend {
        self.settings(&self.url()).build().unwrap()
    }

    async fn left(&self) -> usize {
        let mut left = self.keys("{*}").await.len();
        for pattern in ["{*}:holders", "{*}:waiters"] {
            for (master, key) in self.keys(pattern).await {
                left += self.send::<usize>(master, &format!("ZCARD {key}")).await;
            }
        }
        left
    }
}

#[async_trait]
impl Faults for ClusterRig {
    async fn take_away(&self, name: &str) {
        let master = self.master(name).await;
        let deleted: i64 = self.send(master, &format!("DEL {}", self.key(name))).await;
        assert_eq!(deleted, 1);
    }

    fn outsider(&self) -> RedisBackend {
        self.settings(&self.cluster().url()).build().unwrap()
    }

    fn proxies(&self) -> Vec<&Proxy> {
        assert!(!self.proxies.is_empty(), "the cluster has no proxies");
        self.proxies.iter().collect()
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.cluster().nodes().iter().collect()
    }

    async fn lose_acquire_answer(&self, name: &str) {
        let master = self.master(name).await;
        // Otherwise the answer that the master does not know the script would be lost.
        let other = LockManager::new(self.outsider());
        for number in 0.. {
            let name = number.to_string();
            if self.master(&name).await == master {
                use_lock(&other, &name).await;
                let permits = other.write(&name).acquire().await.unwrap();
                permits.release().await;
                break;
            }
        }
        self.proxies[master].cut_after(b"EVALSHA", 1);
    }

    async fn bring_up(&self) {
        for node in self.cluster().nodes() {
            node.restart().await;
        }
        self.cluster().settled().await;
    }
}

#[async_trait]
impl NumberFaults for ClusterRig {
    async fn lose_change_answer(&self, _: i64) {
        for proxy in &self.proxies {
            proxy.cut_after(b"EVALSHA", 1);
        }
    }
}
