//! A Redis Cluster of three masters, each with one replica.
//!
//! `cluster-require-full-coverage` keeps its default, `yes`: after a master has failed, every node
//! answers CLUSTERDOWN until the replica is promoted. Production runs with that default, and clients
//! must survive it. Replicas stay with their masters, so that a test knows which node is promoted.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use redis::{Cmd, FromRedisValue, cmd};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::PrivateServer;
use super::redis::connect_to_redis;
use crate::eventually;
use crate::ports::free_port;
use crate::run::variable;

mod moves;

/// Names the nodes of a calm cluster to use, with commas between their addresses.
pub(super) const VARIABLE: &str = "TEST_REDIS_CLUSTER";
/// How many masters there are. The replica of node `n` is node `n + MASTERS`.
const MASTERS: usize = 3;
const NODES: usize = 2 * MASTERS;
const SLOTS: usize = 16_384;
/// Upper bound on what takes seconds: forming the cluster, a failover, and the move of a slot.
const PATIENCE: Duration = Duration::from_mins(1);
/// Upper bound on one answer of a node, which may be stopped.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// A replica gives up after five seconds to become the master by command.
const MANUAL_FAILOVER: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(20);

/// A cluster. Dropping this ends it and removes its data, unless another process has started it.
#[derive(Debug)]
pub struct RedisCluster {
    /// Empty if another process has started them.
    nodes: Vec<PrivateServer>,
    addresses: Vec<String>,
    ids: Vec<String>,
}

/// A line of `CLUSTER NODES`.
#[derive(Debug)]
struct Line {
    node: usize,
    flags: String,
    slots: Vec<(u16, u16)>,
}

impl Line {
    fn has(&self, flag: &str) -> bool {
        self.flags.split(',').any(|found| found == flag)
    }

    /// Whether it is a master with slots that has not failed.
    fn serves(&self) -> bool {
        self.has("master") && !self.has("fail") && !self.slots.is_empty()
    }
}

impl RedisCluster {
    /// Flags with which a busy machine causes no failover.
    pub const CALM: [&str; 2] = ["--cluster-node-timeout", "60000"];

    /// A calm cluster that other tests use too. They must not change its nodes.
    ///
    /// # Panics
    /// If there is none and none can be started.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<RedisCluster> = OnceCell::const_new();
        let shared = SHARED.get_or_init(async || {
            let Some(addresses) = variable(VARIABLE) else {
                return Box::pin(Self::start(&Self::CALM)).await;
            };
            let mut cluster = Self {
                nodes: Vec::new(),
                addresses: addresses.split(',').map(str::to_owned).collect(),
                ids: Vec::new(),
            };
            for node in 0..NODES {
                let id = cluster.ask(node, "CLUSTER MYID").await;
                cluster.ids.push(id.expect("the node answers"));
            }
            cluster
        });
        shared.await
    }

    /// Starts six empty nodes that keep nothing on disk, and forms a cluster: nodes 0 to 2 are the
    /// masters of a third of the slots each, nodes 3 to 5 their replicas. `flags` of `redis-server`
    /// override the settings. Returns when it is [`Self::settled`].
    ///
    /// # Panics
    /// If that fails.
    pub async fn start(flags: &[&str]) -> Self {
        let started = Self::launch(flags).await;
        let cluster = started.unwrap_or_else(|error| panic!("no Redis Cluster: {error:#}"));
        cluster.settled().await;
        cluster
    }

    async fn launch(flags: &[&str]) -> Result<Self> {
        let mut cluster = Self {
            nodes: Vec::new(),
            addresses: Vec::new(),
            ids: Vec::new(),
        };
        let mut buses = Vec::new();
        for node in 0..NODES {
            let bus = free_port();
            let port = bus.to_string();
            let mut all = vec!["--cluster-enabled", "yes", "--cluster-port", &port];
            all.extend(["--cluster-node-timeout", "1000"]);
            all.extend(["--cluster-allow-replica-migration", "no"]);
            all.extend(["--repl-diskless-sync-delay", "0"]);
            all.extend(flags);
            let server = PrivateServer::redis(&all).await;
            cluster.addresses.push(server.address());
            cluster.nodes.push(server);
            buses.push(bus);
            let id = cluster.ask(node, "CLUSTER MYID").await?;
            cluster.ids.push(id);
            // Otherwise the nodes settle their order by themselves, which takes seconds.
            let order = format!("CLUSTER SET-CONFIG-EPOCH {}", node + 1);
            let () = cluster.ask(node, &order).await?;
        }
        for master in 0..MASTERS {
            let first = SLOTS * master / MASTERS;
            let last = SLOTS * (master + 1) / MASTERS - 1;
            let slots = format!("CLUSTER ADDSLOTSRANGE {first} {last}");
            let () = cluster.ask(master, &slots).await?;
        }
        for (other, bus) in cluster.nodes.iter().zip(buses).skip(1) {
            let meet = format!("CLUSTER MEET 127.0.0.1 {} {bus}", other.port());
            let () = cluster.ask(0, &meet).await?;
        }
        for replica in MASTERS..NODES {
            let follow = format!("CLUSTER REPLICATE {}", cluster.ids[replica - MASTERS]);
            let follows = async || cluster.ask::<()>(replica, &follow).await.is_ok();
            eventually("the replica knows its master", PATIENCE, follows).await;
        }
        Ok(cluster)
    }

    /// Its URL: the nodes that are the masters at the start. Clients must find the others.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses[..MASTERS].join(","))
    }

    /// Where all nodes listen, `host:port`: the first masters, then their replicas.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// All nodes, in the same order. None for [`Self::shared`], if another process has started it.
    pub fn nodes(&self) -> &[PrivateServer] {
        &self.nodes
    }

    /// The other node with the data of this node: its replica or its master.
    pub fn partner(node: usize) -> usize {
        (node + MASTERS) % NODES
    }

    /// The present masters, as indexes of [`Self::nodes`].
    ///
    /// # Panics
    /// If no node answers.
    pub async fn masters(&self) -> Vec<usize> {
        let lines = self.present().await;
        let masters = lines.iter().filter(|line| line.serves());
        masters.map(|line| line.node).collect()
    }

    /// The present master of a slot.
    ///
    /// # Panics
    /// If no node answers, or the slot has no master.
    pub async fn master_of(&self, slot: u16) -> usize {
        let master = owner(&self.present().await, slot);
        master.expect("the slot has a master")
    }

    /// The slot of a key.
    ///
    /// # Panics
    /// If no node answers.
    pub async fn slot_of(&self, key: &str) -> u16 {
        for node in 0..NODES {
            let question = cmd("CLUSTER").arg("KEYSLOT").arg(key).to_owned();
            if let Ok(slot) = self.query(node, &question).await {
                return slot;
            }
        }
        panic!("no node answers");
    }

    /// Replaces a master by its replica: by a command, which loses nothing, or because it is killed,
    /// which loses what the replica has not received. A killed node is started again, and becomes the
    /// replica. Returns the new master when the cluster is [`Self::settled`].
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub async fn fail_over(&self, master: usize, kill: bool) -> usize {
        let replica = Self::partner(master);
        let leads = async || self.masters().await.contains(&replica);
        if kill {
            self.nodes[master].kill9();
            eventually("the replica is promoted", PATIENCE, leads).await;
            self.nodes[master].restart().await;
        } else {
            let mut asked: Option<Instant> = None;
            eventually("the replica takes over", PATIENCE, async || {
                if asked.is_none_or(|asked| asked.elapsed() > MANUAL_FAILOVER)
                    && self.ask::<()>(replica, "CLUSTER FAILOVER").await.is_ok()
                {
                    asked = Some(Instant::now());
                }
                leads().await
            })
            .await;
        }
        self.settled().await;
        replica
    }

    /// Returns when all nodes are up and agree, and each master has a replica with its data.
    ///
    /// # Panics
    /// If that takes longer than a minute.
    pub async fn settled(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_settled().await {
            assert!(Instant::now() < deadline, "the cluster is not settled");
            sleep(POLL).await;
        }
    }

    async fn is_settled(&self) -> bool {
        let Ok(views) = self.views().await else {
            return false;
        };
        for lines in views {
            let failing = ["fail", "fail?", "handshake"];
            let is_healthy = |line: &Line| !failing.iter().any(|flag| line.has(flag));
            let masters = lines.iter().filter(|line| line.serves());
            if (lines.len(), masters.count()) != (NODES, MASTERS) || !lines.iter().all(is_healthy) {
                return false;
            }
        }
        for node in 0..NODES {
            let info = self.ask::<String>(node, "INFO replication").await;
            let info = info.unwrap_or_default();
            if !(info.contains("state=online") || info.contains("master_link_status:up")) {
                return false;
            }
        }
        true
    }

    /// What each node knows. An error if one of them does not serve clients.
    async fn views(&self) -> Result<Vec<Vec<Line>>> {
        let mut views = Vec::new();
        for node in 0..NODES {
            views.push(self.view(node).await?.1);
        }
        Ok(views)
    }

    /// The latest view of the cluster: a node that was paused may have an older one.
    async fn present(&self) -> Vec<Line> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut latest: Option<(u64, Vec<Line>)> = None;
            for node in 0..NODES {
                if let Ok(view) = self.view(node).await
                    && latest.as_ref().is_none_or(|(epoch, _)| view.0 > *epoch)
                {
                    latest = Some(view);
                }
            }
            if let Some((_, lines)) = latest {
                return lines;
            }
            assert!(Instant::now() < deadline, "no node says cluster_state:ok");
            sleep(POLL).await;
        }
    }

    /// The epoch of a node, and what it knows of the cluster. An error if it does not serve clients.
    async fn view(&self, node: usize) -> Result<(u64, Vec<Line>)> {
        let info: String = self.ask(node, "CLUSTER INFO").await?;
        if !info.contains("cluster_state:ok") {
            bail!("node {node} does not serve clients");
        }
        let mut lines = info.lines();
        let epoch = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"));
        let epoch = epoch.context("no epoch")?.trim().parse()?;
        let table: String = self.ask(node, "CLUSTER NODES").await?;
        let lines: Option<_> = table.lines().map(|line| self.parse(line)).collect();
        Ok((epoch, lines.with_context(|| format!("unknown: {table}"))?))
    }

    /// `id address flags master ping pong epoch link slot…`; a slot that moves is in brackets.
    fn parse(&self, line: &str) -> Option<Line> {
        let words: Vec<_> = line.split(' ').collect();
        let id = *words.first()?;
        let range = |word: &&str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Line {
            node: self.ids.iter().position(|known| known == id)?,
            flags: (*words.get(2)?).to_owned(),
            slots: words.get(8..)?.iter().filter_map(range).collect(),
        })
    }

    /// Sends a command to a node.
    async fn ask<T: FromRedisValue>(&self, node: usize, command: &str) -> Result<T> {
        let mut words = command.split(' ');
        let mut command = cmd(words.next().expect("a command"));
        for word in words {
            command.arg(word);
        }
        self.query(node, &command).await
    }

    async fn query<T: FromRedisValue>(&self, node: usize, command: &Cmd) -> Result<T> {
        let url = format!("redis://{}", self.addresses[node]);
        let answer = async {
            command
                .query_async(&mut connect_to_redis(&url).await?)
                .await
        };
        Ok(timeout(ANSWERS_WITHIN, answer).await??)
    }
}

/// The master of a slot.
fn owner(lines: &[Line], slot: u16) -> Option<usize> {
    let serves = |line: &&Line| {
        let mut slots = line.slots.iter();
        line.serves() && slots.any(|&(first, last)| (first..=last).contains(&slot))
    };
    lines.iter().find(serves).map(|line| line.node)
}
