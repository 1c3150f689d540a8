//! A private root per test on a ZooKeeper server, behind a proxy, under real time.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use stocklock_locks::clock::BootClock;
use stocklock_locks::zookeeper::{ZooKeeperBackend, ZooKeeperBuilder};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{PrivateServer, TestZooKeeper, ask, fresh_zookeeper};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use super::{Faults, NumberFaults, Rig, Served};

pub(crate) struct ZooKeeperRig {
    /// A private server that this rig may kill.
    own: Option<PrivateServer>,
    pub(crate) proxy: Proxy,
    /// Does not exist at first.
    pub(crate) root: String,
    pub(crate) address: String,
    _parent: TestZooKeeper,
}

impl ZooKeeperRig {
    /// Uses the server that all tests of this process share.
    pub(crate) async fn start() -> Self {
        Self::below(fresh_zookeeper().await, None).await
    }

    pub(crate) async fn start_private() -> Self {
        let server = PrivateServer::zookeeper().await;
        let parent = TestZooKeeper::create(server.url(), false).await;
        Self::below(parent.unwrap(), Some(server)).await
    }

    async fn below(parent: TestZooKeeper, own: Option<PrivateServer>) -> Self {
        let (address, path) = parent.connect.split_once('/').expect("a root");
        Self {
            own,
            proxy: Proxy::to(address).await,
            root: format!("/{path}/locks"),
            address: address.to_owned(),
            _parent: parent,
        }
    }

    /// The answer of the server to a four-letter word.
    pub(crate) async fn ask(&self, word: &str) -> String {
        ask(&self.address, word).await.unwrap()
    }

    fn own(&self) -> &PrivateServer {
        self.own.as_ref().expect("a private server")
    }

    /// Opens a session that does not use the proxy.
    pub(crate) async fn direct(&self) -> Client {
        let connected = Client::connect(&self.address).await;
        connected.expect("ZooKeeper answers")
    }

    /// Creates a node below the root, which every session may change. Returns its path.
    pub(crate) async fn create(&self, name: &str, data: &[u8]) -> String {
        let path = format!("{}/{name}", self.root);
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let created = self.direct().await.create(&path, data, &options).await;
        created.unwrap();
        path
    }

    pub(crate) fn at(&self, cluster: &str) -> ZooKeeperBackend {
        self.settings(cluster).build().unwrap()
    }

    pub(crate) fn settings(&self, cluster: &str) -> ZooKeeperBuilder {
        ZooKeeperBackend::builder(cluster)
            .root(&self.root)
            .session_timeout(Self::LEASE * 5 / 3)
            .response_limit(Duration::from_millis(500))
    }

    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let said = self.ask("mntr").await;
        let mut lines = said.lines().filter_map(|line| line.split_once('\t'));
        let value = lines.find(|(key, _)| *key == name).expect(name).1;
        value.parse().unwrap()
    }

    /// Returns the nodes below the root: one directory per lock name, and `.source`.
    pub(crate) async fn names(&self) -> Vec<String> {
        match self.direct().await.list_children(&self.root).await {
            Ok(names) => names,
            Err(Error::NoNode) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the places in the queues of all locks. Names that begin with a dot are no locks.
    pub(crate) async fn places(&self) -> Vec<String> {
        let client = self.direct().await;
        let mut names = self.names().await;
        names.retain(|name| !name.starts_with('.'));
        let queue = async |name: &String| {
            let directory = format!("{}/{name}", self.root);
            match client.list_children(&directory).await {
                Ok(places) => places
                    .into_iter()
                    .map(|place| format!("{directory}/{place}"))
                    .collect(),
                Err(Error::NoNode) => Vec::new(),
                Err(error) => panic!("{error}"),
            }
        };
        join_all(names.iter().map(queue)).await.concat()
    }
}

#[async_trait]
impl Rig for ZooKeeperRig {
    /// Three fifths of the session timeout, after which a session may have ended.
    const LEASE: Duration = Duration::from_millis(1_500);
    const MOMENT: Duration = Duration::from_millis(800);
    const STEP: Duration = Duration::from_micros(200);

    type Backend = ZooKeeperBackend;
    type Clock = BootClock;

    fn backend(&self) -> ZooKeeperBackend {
        self.at(&self.proxy.address().to_string())
    }

    async fn left(&self) -> usize {
        self.places().await.len()
    }
}

#[async_trait]
impl Faults for ZooKeeperRig {
    async fn take_away(&self, name: &str) {
        let start = format!("{}/{name}/", self.root);
        let places = self.places().await;
        let place = places.iter().find(|place| place.starts_with(&start));
        let place = place.expect("it is held");
        self.direct().await.delete(place, None).await.unwrap();
    }

    fn outsider(&self) -> ZooKeeperBackend {
        self.at(&self.address)
    }

    fn proxies(&self) -> Vec<&Proxy> {
        vec![&self.proxy]
    }

    async fn lose_acquire_answer(&self, name: &str) {
        // Without a directory, the lost answer would be `NoNode` instead of the created place.
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        let direct = self.direct().await;
        for kind in ["", "%permits"] {
            let directory = format!("{}/{name}{kind}", self.root);
            direct.mkdir(&directory, &options).await.unwrap();
        }
        self.proxy.cut_after(b"-lock-", 1);
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        vec![self.own()]
    }
}

impl Served for ZooKeeperRig {
    fn url(&self) -> String {
        format!("zookeeper://{}{}", self.proxy.address(), self.root)
    }
}

#[async_trait]
impl NumberFaults for ZooKeeperRig {
    async fn lose_change_answer(&self, number: i64) {
        // Only the request that writes the node contains the number.
        self.proxy.cut_after(format!("{number}\n").as_bytes(), 1);
    }
}
