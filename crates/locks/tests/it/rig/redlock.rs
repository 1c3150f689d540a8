//! Redis masters, each behind a proxy, under real time.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use stocklock_locks::clock::BootClock;
use stocklock_locks::redis::redlock::{RedLockBackend, RedLockBuilder};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, fresh_masters, vote};

use super::redis::RedisRig;
use super::{Faults, Rig, Served, eventually};

/// How long a master may take to answer.
const NODE_LIMIT: Duration = Duration::from_secs(1);

pub(crate) struct RedLockRig {
    pub(crate) masters: Vec<RedisRig>,
    max_lease: Duration,
}

impl RedLockRig {
    /// Three masters that other tests use too.
    pub(crate) async fn start() -> Self {
        Self::of(3).await
    }

    pub(crate) async fn of(masters: usize) -> Self {
        Self::with_max_lease(masters, Self::LEASE).await
    }

    /// Masters that other tests use too, for locks with such leases. The first such test waits for the masters.
    pub(crate) async fn with_max_lease(masters: usize, max_lease: Duration) -> Self {
        let masters = fresh_masters(masters, max_lease).await;
        let masters = masters.urls.into_iter().map(|url| RedisRig::at(url, None));
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
        let masters = join_all((0..masters).map(|_| RedisRig::start())).await;
        let urls: Vec<_> = masters.iter().map(|master| &*master.direct).collect();
        vote(&urls, Self::LEASE).await;
        Self {
            masters,
            max_lease: Self::LEASE,
        }
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

    fn settings(&self, urls: impl Iterator<Item = String>) -> RedLockBuilder {
        let builder = RedLockBackend::builder(urls).max_lease(self.max_lease);
        builder.node_limit(NODE_LIMIT)
    }

    /// A back end that waits for a silent master for three times as long as this.
    pub(crate) fn patient(&self, node_limit: Duration) -> RedLockBackend {
        let settings = self.settings(self.masters.iter().map(RedisRig::url));
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

impl Served for RedLockRig {
    fn url(&self) -> String {
        let urls: Vec<_> = self.masters.iter().map(RedisRig::url).collect();
        urls.join(",")
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
        let settings = self.settings(self.masters.iter().map(|master| master.direct.clone()));
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
        self.masters.iter().map(RedisRig::server).collect()
    }
}
