//! Three MariaDB servers that are one Galera cluster, with HAProxy: the configuration files of `deploy/galera/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

use super::failover::{Cluster, NODES};
use super::haproxy::HaProxy;
use super::supervisor::{
    POLL_INTERVAL, READY_WITHIN, Supervisor, create_directory, give_to_server, write_deployed,
    write_file,
};
use super::{Program, deploy, sql, with_path};
use crate::ports::free_ports;
use crate::run::unique_name;

/// Where Debian's package `galera-4` installs it.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
/// Refused until a node has joined.
const READ: &str = "SELECT count(*) FROM mysql.user";
/// Refused until the node has all changes of a cluster of three.
const IS_WHOLE: &str = "BEGIN NOT ATOMIC
    IF (SELECT count(*) FROM information_schema.global_status
        WHERE (variable_name = 'WSREP_LOCAL_STATE' AND variable_value = '4')
            OR (variable_name = 'WSREP_CLUSTER_SIZE' AND variable_value = '3')) <> 2
    THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the node is not synced'; END IF; END";
/// The ports of a node: for clients, for the group, and to receive changes and a copy of all data.
const PORTS: u16 = 4;
const DATABASE: &str = "stocklock";
/// What HAProxy and [`Cluster::commits`] need.
const PREPARE: &str = "CREATE USER haproxy; CREATE DATABASE stocklock;
    CREATE DATABASE probe; CREATE TABLE probe.write (id INT PRIMARY KEY, at TIMESTAMP(6))";
/// Upper bound on the time until all nodes are part of the cluster again.
const WHOLE_WITHIN: Duration = Duration::from_mins(3);
/// Upper bound on the time of a write. One that waits until the group goes on without a node takes seconds.
const WRITES_WITHIN: Duration = Duration::from_secs(20);
/// The pause between two looks at the nodes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts a node as Debian's service does: a node that was killed looks up which changes it has, and asks the others
/// for the rest only.
const START: &str = r#"
    "$@" --wsrep-recover --log-error="$PWD/recovery"
    position=$(sed -n 's/.*WSREP: Recovered position: *//p' recovery | tail -n 1)
    rm -f recovery
    exec "$@" ${position:+--wsrep-start-position="$position"}
"#;

/// A private cluster. Dropping this ends it and removes its data.
#[derive(Debug)]
pub struct GaleraCluster {
    nodes: Vec<Node>,
    proxy: HaProxy,
}

#[derive(Debug)]
struct Node {
    supervisor: Supervisor,
    port: u16,
    url: String,
}

impl GaleraCluster {
    /// Starts it with the configuration files of this repository.
    ///
    /// # Panics
    /// If it does not start.
    pub async fn start() -> Self {
        let started = Self::launch(&deploy()).await;
        started.unwrap_or_else(|error| panic!("no Galera cluster: {error:#}"))
    }

    /// Starts it with the files of this directory. Returns when all nodes have joined.
    ///
    /// # Errors
    /// It does not start.
    pub async fn launch(deploy: &Path) -> Result<Self> {
        ensure!(
            Path::new(PROVIDER).exists(),
            "Galera is not installed: run `make services`"
        );
        let first = free_ports(PORTS * 3 + 1);
        let ports: Vec<u16> = (first..).step_by(PORTS.into()).take(NODES).collect();
        let members: Vec<String> = ports.iter().map(|port| group(*port)).collect();
        let members = members.join(",");
        let mut nodes = Vec::new();
        for &port in &ports {
            let node = Node::prepare(deploy, port)?;
            let directory = node.supervisor.directory();
            if nodes.is_empty() {
                sql::copy_data(&sql::template(Program::MariaDb).await?, directory).await?;
                node.configure(deploy, "")?;
            } else {
                // The others get the data from a node.
                let data = directory.join("data");
                fs::create_dir(&data)?;
                give_to_server(&data)?;
                node.configure(deploy, &members)?;
            }
            node.supervisor.start()?;
            node.joins().await?;
            nodes.push(node);
        }
        nodes[0].configure(deploy, &members)?;
        sql::execute(&nodes[0].url, PREPARE.to_owned()).await?;
        let proxy = proxy(deploy, first + PORTS * 3, &ports).await?;
        let cluster = Self { nodes, proxy };
        cluster.is_whole().await?;
        Ok(cluster)
    }

    /// Creates an empty database, and returns its URL at each node.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn fresh_database(&self) -> Result<Vec<String>> {
        let name = unique_name();
        sql::execute(&self.nodes[0].url, format!("CREATE DATABASE {name}")).await?;
        Ok((self.nodes.iter().map(|node| with_path(&node.url, &name))).collect())
    }

    /// Makes the node drop all messages of the others, or ends that.
    async fn isolate(&self, node: usize, isolated: bool) -> Result<()> {
        let isolate = u8::from(isolated);
        let set = format!("SET GLOBAL wsrep_provider_options = 'gmcast.isolate={isolate}'");
        sql::execute(&self.nodes[node].url, set).await
    }

    /// Sends commands to HAProxy.
    async fn tell_proxy(&self, commands: &str) -> Result<()> {
        let mut socket = UnixStream::connect(self.proxy.directory().join("admin.sock")).await?;
        socket.write_all(format!("{commands}\n").as_bytes()).await?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await?;
        ensure!(answer.trim().is_empty(), "{commands}: {answer}");
        Ok(())
    }
}

impl Cluster for GaleraCluster {
    const REFUSES_WRITES: bool = false;

    fn url(&self) -> String {
        with_path(&Program::MariaDb.url(self.proxy.port()), DATABASE)
    }

    fn url_of(&self, node: usize) -> String {
        with_path(&self.nodes[node].url, DATABASE)
    }

    fn supervisor(&self, node: usize) -> &Supervisor {
        &self.nodes[node].supervisor
    }

    async fn is_primary(&self, node: usize) -> bool {
        self.commits(node).await
    }

    /// The proxy must lead to the node.
    async fn commits(&self, node: usize) -> bool {
        let write = format!(
            "BEGIN NOT ATOMIC
                IF @@port <> {} THEN SIGNAL SQLSTATE '45000'; END IF;
                REPLACE INTO probe.write VALUES ({node}, now(6));
            END",
            self.nodes[node].port
        );
        let url = self.url();
        let written = timeout(WRITES_WITHIN, sql::execute(&url, write)).await;
        matches!(written, Ok(Ok(())))
    }

    /// Then the proxy leads to the first node again.
    async fn is_whole(&self) -> Result<()> {
        let deadline = Instant::now() + WHOLE_WITHIN;
        for node in &self.nodes {
            while let Err(error) = sql::execute(&node.url, IS_WHOLE.to_owned()).await {
                let log = node.supervisor.log_tail();
                ensure!(Instant::now() < deadline, "{error}, and its log:\n{log}");
                sleep(LOOK_INTERVAL).await;
            }
        }
        while !self.is_primary(0).await {
            ensure!(Instant::now() < deadline, "the first node is not used");
            sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    async fn cut_off(&self, node: usize) -> Result<()> {
        self.isolate(node, true).await
    }

    async fn connect_again(&self, node: usize) -> Result<()> {
        self.isolate(node, false).await
    }

    /// The node is taken out of service in HAProxy, until another one has its connections.
    async fn switch_over(&self) -> Result<()> {
        let old = self.primary().await.context("no primary")?;
        let server = format!("primary/db-{}", old + 1);
        self.tell_proxy(&format!(
            "set server {server} state maint; shutdown sessions server {server}"
        ))
        .await?;
        let deadline = Instant::now() + WHOLE_WITHIN;
        while self.primary().await.is_none_or(|new| new == old) {
            ensure!(Instant::now() < deadline, "no other node is used");
            sleep(POLL_INTERVAL).await;
        }
        self.tell_proxy(&format!("set server {server} state ready"))
            .await
    }
}

impl Node {
    fn prepare(deploy: &Path, port: u16) -> Result<Self> {
        let directory = create_directory("galera")?;
        write_deployed(
            directory.path(),
            &deploy.join("mariadb.cnf"),
            &[("", ""); 0],
        )?;
        let home = directory.path().display();
        let both = format!("!include {home}/mariadb.cnf\n!include {home}/galera.cnf\n");
        let settings = write_file(directory.path(), "my.cnf", &both)?;
        let server = sql::mariadb(directory.path(), port, Some(&settings))?;
        let mut command = Command::new("sh");
        command.args(["-c", START, "galera"]);
        command.arg(server.get_program()).args(server.get_args());
        // The log size of the template.
        command.args([
            "--innodb-buffer-pool-size=64M",
            "--innodb-log-file-size=32M",
        ]);
        command.arg(format!(
            "--wsrep-sst-receive-address=127.0.0.1:{}",
            port + 3
        ));
        Ok(Self {
            supervisor: Supervisor::new(directory, "KILL", Some(&command))?,
            url: Program::MariaDb.url(port),
            port,
        })
    }

    /// Writes the settings of the node. The first node of a new cluster has no `members` when it starts.
    fn configure(&self, deploy: &Path, members: &str) -> Result<PathBuf> {
        let (own, changes) = (group(self.port), self.port + 2);
        let options = format!(
            "gmcast.listen_addr=tcp://{own}; ist.recv_addr=127.0.0.1:{changes}; \
             ist.recv_bind=127.0.0.1:{changes}; gcache.page_size=16M; gcache.size=16M"
        );
        let replacements = [
            ("gcomm://db-1,db-2,db-3", format!("gcomm://{members}")),
            ("gcache.size=1G", options),
            ("node_name = db-1", format!("node_name = {}", self.port)),
            ("node_address = db-1", format!("node_address = {own}")),
        ];
        let file = deploy.join("galera/galera.cnf");
        write_deployed(self.supervisor.directory(), &file, &replacements)
    }

    /// Waits until the node accepts statements.
    async fn joins(&self) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while sql::execute(&self.url, READ.to_owned()).await.is_err() {
            let log = self.supervisor.log_tail();
            ensure!(!self.supervisor.has_ended(), "a node ended:\n{log}");
            ensure!(Instant::now() < deadline, "a node does not join:\n{log}");
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// The address of a node for the others.
fn group(port: u16) -> String {
    format!("127.0.0.1:{}", port + 1)
}

async fn proxy(deploy: &Path, port: u16, nodes: &[u16]) -> Result<HaProxy> {
    let mut replacements = vec![
        ("bind :3306".to_owned(), format!("bind 127.0.0.1:{port}")),
        (
            "/run/haproxy/admin.sock".to_owned(),
            "unix@admin.sock".to_owned(),
        ),
    ];
    for (number, node) in (1..).zip(nodes) {
        replacements.push((format!("db-{number}:3306"), format!("127.0.0.1:{node}")));
    }
    HaProxy::start(port, &deploy.join("galera/haproxy.cfg"), &replacements).await
}
