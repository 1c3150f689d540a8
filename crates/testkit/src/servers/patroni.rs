//! Three PostgreSQL servers under Patroni, with etcd and HAProxy: the configuration files of `deploy/patroni/`.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::failover::{Cluster, NODES};
use super::haproxy::HaProxy;
use super::installed::{find, server_command};
use super::supervisor::{Supervisor, create_directory, write_deployed};
use super::{ask, deploy, password, sql};
use crate::ports::free_ports;
use crate::proxy::{Mode, Proxy};

/// etcd has two ports, HAProxy one, and each of the nodes two.
const PORTS: u16 = 9;
const DATABASE: &str = "stocklock";
/// Upper bound on the time until the cluster is complete. A primary that was lost is replaced after 20 s.
const WHOLE_WITHIN: Duration = Duration::from_mins(3);
/// The pause between two looks at the members.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Refused by a standby.
const WRITE: &str = "SELECT pg_logical_emit_message(true, 'test', '')";
/// Upper bound on the time of an answer. A write may wait for a standby.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// What [`Replication::Asynchronous`] changes.
const ASYNCHRONOUS: [(&str, &str); 2] = [
    ("synchronous_mode: true", "synchronous_mode: false"),
    (
        "synchronous_mode_strict: true",
        "synchronous_mode_strict: false",
    ),
];

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// A standby has it, as in `deploy/patroni/patroni.yml`.
    Synchronous,
    /// Nothing.
    Asynchronous,
}

/// A private cluster. Dropping this ends it and removes its data.
#[derive(Debug)]
pub struct PatroniCluster {
    replication: Replication,
    // Before etcd, without which Patroni takes longer to end.
    nodes: Vec<Node>,
    proxy: HaProxy,
    _etcd: Supervisor,
}

#[derive(Debug)]
struct Node {
    supervisor: Supervisor,
    name: String,
    /// Of PostgreSQL.
    port: u16,
    /// Of Patroni.
    api: u16,
    links: Links,
}

/// The network between a node and the others. Clients and HAProxy reach the node directly.
#[derive(Debug)]
struct Links {
    /// To its PostgreSQL.
    postgres: Proxy,
    /// To its Patroni.
    api: Proxy,
    /// From it to etcd.
    etcd: Proxy,
}

impl Links {
    async fn to(port: u16, api: u16, etcd: u16) -> Self {
        let link = |port| Proxy::to(format!("127.0.0.1:{port}"));
        Self {
            postgres: link(port).await,
            api: link(api).await,
            etcd: link(etcd).await,
        }
    }
}

impl PatroniCluster {
    /// Starts it with the files of this directory. Returns when there are a primary and two standbys.
    ///
    /// # Errors
    /// It does not start.
    pub async fn launch(deploy: &Path, replication: Replication) -> Result<Self> {
        let port = free_ports(PORTS);
        let etcd = etcd(port, port + 1).await?;
        let mut nodes = Vec::new();
        for (number, first) in (1..=NODES).zip((port + 3..).step_by(2)) {
            let name = format!("pg-{number}");
            nodes.push(Node::start(deploy, name, first, port, replication).await?);
        }
        let mut replacements = vec![(
            "bind :5432".to_owned(),
            format!("bind 127.0.0.1:{}", port + 2),
        )];
        replacements.push(("port 8008 ".to_owned(), String::new()));
        for node in &nodes {
            let address = format!("{}:5432 check", node.name);
            let found = format!("127.0.0.1:{} check port {}", node.port, node.api);
            replacements.push((address, found));
        }
        let file = deploy.join("patroni/haproxy.cfg");
        let cluster = Self {
            replication,
            nodes,
            proxy: HaProxy::start(port + 2, &file, &replacements).await?,
            _etcd: etcd,
        };
        cluster.is_whole().await?;
        let primary = cluster.primary().await.context("no primary")?;
        let create = format!("CREATE DATABASE {DATABASE}");
        sql::execute(&url(cluster.nodes[primary].port, "postgres"), create).await?;
        Ok(cluster)
    }

    /// Starts it with the configuration files of this repository.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start(replication: Replication) -> Self {
        let started = Self::launch(&deploy(), replication).await;
        started.unwrap_or_else(|error| panic!("no Patroni cluster: {error:#}"))
    }

    /// How the other nodes reach the PostgreSQL of a node.
    pub fn link(&self, node: usize) -> &Proxy {
        &self.nodes[node].links.postgres
    }

    /// A primary has no connection of its own but to etcd.
    async fn set_links(&self, node: usize, mode: Mode) {
        let links = &self.nodes[node].links;
        for link in [&links.postgres, &links.api, &links.etcd] {
            link.set(mode).await;
        }
    }

    /// Whether there are a primary and two standbys with the same history, and a standby is synchronous if one has
    /// to be.
    fn are_whole(&self, members: &[Value]) -> bool {
        let has = |role| members.iter().any(|member| member["role"] == role);
        let follows = |member: &Value| {
            member["timeline"] == members[0]["timeline"]
                && matches!(member["state"].as_str(), Some("running" | "streaming"))
                && (member["role"] == "leader" || member["lag"].is_u64())
        };
        members.len() == NODES
            && has("leader")
            && (self.replication == Replication::Asynchronous || has("sync_standby"))
            && members.iter().all(follows)
    }

    /// The members of the cluster as the primary sees them.
    async fn members(&self) -> Result<Vec<Value>> {
        let primary = self.primary().await.context("no primary")?;
        let answer = self.nodes[primary].ask("GET /cluster HTTP/1.0\r\n\r\n");
        let answer = answer.await?;
        let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
        let mut cluster: Value = serde_json::from_str(body)?;
        Ok(serde_json::from_value(cluster["members"].take())?)
    }
}

impl Cluster for PatroniCluster {
    const REFUSES_WRITES: bool = true;

    fn url(&self) -> String {
        url(self.proxy.port(), DATABASE)
    }

    fn url_of(&self, node: usize) -> String {
        url(self.nodes[node].port, DATABASE)
    }

    fn supervisor(&self, node: usize) -> &Supervisor {
        &self.nodes[node].supervisor
    }

    /// Whether its Patroni says so. A frozen one says nothing.
    async fn is_primary(&self, node: usize) -> bool {
        let answer = self.nodes[node].ask("OPTIONS /primary HTTP/1.0\r\n\r\n");
        let answer = answer.await.unwrap_or_default();
        answer.split(' ').nth(1) == Some("200")
    }

    /// Then a standby has the write.
    async fn commits(&self, node: usize) -> bool {
        let url = url(self.nodes[node].port, "postgres");
        let written = timeout(ANSWERS_WITHIN, sql::execute(&url, WRITE.to_owned()));
        matches!(written.await, Ok(Ok(())))
    }

    async fn is_whole(&self) -> Result<()> {
        let deadline = Instant::now() + WHOLE_WITHIN;
        loop {
            let found = self.members().await;
            if found.as_ref().is_ok_and(|members| self.are_whole(members)) {
                return Ok(());
            }
            let supervisors = || self.nodes.iter().map(|node| &node.supervisor);
            ensure!(
                Instant::now() < deadline && !supervisors().any(Supervisor::has_ended),
                "{found:?}\n{}",
                supervisors().map(Supervisor::log_tail).collect::<String>()
            );
            sleep(LOOK_INTERVAL).await;
        }
    }

    async fn cut_off(&self, node: usize) -> Result<()> {
        self.set_links(node, Mode::Blackhole).await;
        Ok(())
    }

    async fn connect_again(&self, node: usize) -> Result<()> {
        self.set_links(node, Mode::Pass).await;
        Ok(())
    }

    /// As `patronictl switchover` does it.
    async fn switch_over(&self) -> Result<()> {
        let primary = self.primary().await.context("no primary")?;
        let node = &self.nodes[primary];
        let body = json!({ "leader": node.name }).to_string();
        let request = format!(
            "POST /switchover HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = timeout(WHOLE_WITHIN, ask(&node.api(), &request)).await??;
        ensure!(answer.split(' ').nth(1) == Some("200"), "{answer}");
        Ok(())
    }
}

impl Node {
    /// Starts Patroni, which starts PostgreSQL at the first of two ports.
    async fn start(
        deploy: &Path,
        name: String,
        port: u16,
        etcd: u16,
        replication: Replication,
    ) -> Result<Self> {
        let api = port + 1;
        let directory = create_directory("patroni")?;
        let home = directory.path().display().to_string();
        let programs = find("pg_controldata")?;
        let programs = programs.parent().context("it is in a directory")?;
        let links = Links::to(port, api, etcd).await;
        let mut replacements = vec![
            ("name: pg-1", format!("name: {name}")),
            ("0.0.0.0:8008", format!("127.0.0.1:{api}")),
            ("pg-1:8008", links.api.address().to_string()),
            (
                "[etcd-1:2379, etcd-2:2379, etcd-3:2379]",
                // Otherwise Patroni asks etcd for its own address, and goes around the proxy.
                format!("[{}]\n  use_proxies: true", links.etcd.address()),
            ),
            ("0.0.0.0:5432", format!("127.0.0.1:{port}")),
            ("pg-1:5432", links.postgres.address().to_string()),
            ("/var/lib/postgresql/15/stocklock", format!("{home}/data")),
            ("/usr/lib/postgresql/15/bin", programs.display().to_string()),
            (
                "/var/lib/postgresql/stocklock.pgpass",
                format!("{home}/pgpass"),
            ),
            ("/var/run/postgresql", home),
            ("SUPERUSER_PASSWORD", password().to_owned()),
            ("REPLICATION_PASSWORD", password().to_owned()),
        ];
        if replication == Replication::Asynchronous {
            for (from, to) in ASYNCHRONOUS {
                replacements.push((from, to.to_owned()));
            }
        }
        let file = deploy.join("patroni/patroni.yml");
        let mut command = server_command("patroni")?;
        command.arg(write_deployed(directory.path(), &file, &replacements)?);
        let supervisor = Supervisor::new(directory, "KILL", Some(&command))?;
        supervisor.start()?;
        Ok(Self {
            supervisor,
            name,
            port,
            api,
            links,
        })
    }

    /// The address of Patroni.
    fn api(&self) -> String {
        format!("127.0.0.1:{}", self.api)
    }

    async fn ask(&self, question: &str) -> Result<String> {
        timeout(ANSWERS_WITHIN, ask(&self.api(), question)).await?
    }
}

async fn etcd(clients: u16, peers: u16) -> Result<Supervisor> {
    let directory = create_directory("etcd")?;
    let address = |port| format!("http://127.0.0.1:{port}");
    let mut command = server_command("etcd")?;
    command.arg("--enable-v2");
    command.arg("--data-dir").arg(directory.path().join("data"));
    command.args(["--listen-client-urls", &address(clients)]);
    command.args(["--advertise-client-urls", &address(clients)]);
    command.args(["--listen-peer-urls", &address(peers)]);
    command.args(["--initial-advertise-peer-urls", &address(peers)]);
    let members = format!("default={}", address(peers));
    command.args(["--initial-cluster", &members]);
    let supervisor = Supervisor::new(directory, "KILL", Some(&command))?;
    supervisor.start()?;
    supervisor.listens_at(clients).await?;
    Ok(supervisor)
}

fn url(port: u16, database: &str) -> String {
    format!(
        "postgres://postgres:{}@127.0.0.1:{port}/{database}",
        password()
    )
}
