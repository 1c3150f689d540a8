//! Redis masters, each behind a proxy, under real time.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use redis::FromRedisValue;
use redis::aio::MultiplexedConnection;
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::redlock::{RedLockBackend, RedLockBuilder};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, connect_to_redis, fresh_masters, vote};

use super::redis::run;
use super::{Faults, Rig, eventually};

/// How long a master may take to answer.
const NODE_LIMIT: Duration = Duration::from_secs(1);

pub(crate) struct RedLockRig {
    pub(crate) masters: Vec<Master>,
    max_lease: Duration,
}

/// A Redis master and the proxy in front of it.
pub(crate) struct Master {
    /// Its URL without the proxy.
    url: String,
    /// Its URL through the proxy.
    through: String,
    pub(crate) proxy: Proxy,
    /// `None` if other tests use the same server.
    server: Option<PrivateServer>,
}

impl Master {
    async fn new(url: String, server: Option<PrivateServer>) -> Self {
        let (proxy, through) = Proxy::before(&url).await;
        Self {
            url,
            through,
            proxy,
            server,
        }
    }

    pub(crate) fn server(&self) -> &PrivateServer {
        let server = self.server.as_ref();
        server.expect("the test started private masters")
    }

    /// Opens a connection that does not use the proxy.
    pub(crate) async fn direct(&self) -> MultiplexedConnection {
        connect_to_redis(&self.url).await.unwrap()
    }

    /// A client of the database of this test.
    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(self.through.as_str()).unwrap()
    }

    /// Sends a command to the server.
    pub(crate) async fn run<T: FromRedisValue>(&self, line: &str) -> T {
        run(&mut self.direct().await, line).await
    }

    pub(crate) async fn keys(&self, pattern: &str) -> Vec<String> {
        self.run(&format!("KEYS {pattern}")).await
    }
}

impl RedLockRig {
    /// Three masters that other tests use too.
    pub(crate) async fn start() -> Self {
        Self::of(3).await
    }

    /// Masters that other tests use too.
    pub(crate) async fn of(masters: usize) -> Self {
        Self::with_max_lease(masters, Self::LEASE).await
    }

    /// Masters that other tests use too, for locks with such leases. The first such test waits for the masters.
    pub(crate) async fn with_max_lease(masters: usize, max_lease: Duration) -> Self {
        let masters = fresh_masters(masters, max_lease).await;
        let masters = masters.urls.into_iter().map(|url| Master::new(url, None));
        Self {
            masters: join_all(masters).await,
            max_lease,
        }
    }

    /// Three masters that this test may kill and change.
    pub(crate) async fn start_private() -> Self {
        Self::private(3).await
    }

    /// Masters that this test may kill and change.
    pub(crate) async fn private(masters: usize) -> Self {
        let start = async || {
            let server = PrivateServer::redis(&[]).await;
            Master::new(server.url().to_owned(), Some(server)).await
        };
        let masters = join_all((0..masters).map(|_| start())).await;
        let urls: Vec<_> = masters.iter().map(|master| &*master.url).collect();
        vote(&urls, Self::LEASE).await;
        Self {
            masters,
            max_lease: Self::LEASE,
        }
    }

    /// Sets the maximum lease, at most the one of the rig.
    pub(crate) fn max_lease(mut self, max_lease: Duration) -> Self {
        assert!(max_lease <= Self::LEASE, "the masters do not vote yet");
        self.max_lease = max_lease;
        self
    }

    /// The URLs, with commas between them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<_> = self.masters.iter().map(|master| &*master.through).collect();
        urls.join(",")
    }

    /// How many masters have a vote for this lock.
    pub(crate) async fn votes(&self, name: &str) -> usize {
        let pattern = format!("redlock{{{name}}}");
        let keys = self.masters.iter().map(|master| master.keys(&pattern));
        join_all(keys).await.concat().len()
    }

    /// Waits until all masters have a vote for this lock.
    pub(crate) async fn wait_for_votes(&self, name: &str) {
        let voted = async || self.votes(name).await == self.masters.len();
        eventually("all masters have voted", Self::SOON, voted).await;
    }

    /// How many keys all masters have together.
    pub(crate) async fn keys(&self) -> usize {
        let keys = self.masters.iter().map(|master| master.keys("*"));
        join_all(keys).await.concat().len()
    }

    /// Lets the votes for a lock stay for a minute, unless they are given back.
    pub(crate) async fn prolong(&self, name: &str) {
        for master in &self.masters {
            let expire = format!("PEXPIRE redlock{{{name}}} 60000");
            master.run::<i64>(&expire).await;
        }
    }

    /// Deletes the vote of one master. Returns whether it had one.
    pub(crate) async fn forget(&self, master: usize, name: &str) -> bool {
        let delete = format!("DEL redlock{{{name}}}");
        self.masters[master].run(&delete).await
    }

    fn settings<'a>(&self, urls: impl Iterator<Item = &'a String>) -> RedLockBuilder {
        let builder = RedLockBackend::builder(urls).max_lease(self.max_lease);
        builder.node_limit(NODE_LIMIT)
    }

    /// A back end that waits for a silent master for three times as long as this.
    pub(crate) fn patient(&self, node_limit: Duration) -> RedLockBackend {
        let settings = self.settings(self.masters.iter().map(|master| &master.through));
        settings.node_limit(node_limit).build().unwrap()
    }
}

#[async_trait]
impl Rig for RedLockRig {
    const LEASE: Duration = Duration::from_secs(3);
    const MOMENT: Duration = Duration::from_secs(2);
    const STEP: Duration = Duration::from_micros(50);

    type Backend = RedLockBackend;
    type Clock = BootClock;

    fn backend(&self) -> RedLockBackend {
        self.patient(NODE_LIMIT)
    }

    async fn left(&self) -> usize {
        let keys = self.masters.iter().map(|master| master.keys("redlock{*}"));
        BTreeSet::from_iter(join_all(keys).await.concat()).len()
    }
}

#[async_trait]
impl Faults for RedLockRig {
    async fn take_away(&self, name: &str) {
        let mut taken = 0;
        for master in 0..self.masters.len() {
            taken += usize::from(self.forget(master, name).await);
        }
        assert!(taken > self.masters.len() / 2, "{taken} votes");
    }

    fn outsider(&self) -> RedLockBackend {
        let settings = self.settings(self.masters.iter().map(|master| &master.url));
        settings.build().unwrap()
    }

    fn proxies(&self) -> Vec<&Proxy> {
        self.masters.iter().map(|master| &master.proxy).collect()
    }

    async fn lose_acquire_answer(&self, _: &str) {
        for master in &self.masters {
            master.proxy.cut_after(b"EVALSHA", 1);
        }
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        self.masters.iter().map(Master::server).collect()
    }
}
