//! Three MariaDB servers that are one Galera cluster.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use tokio::time::{Instant, sleep};

use super::supervisor::{
    POLL_INTERVAL, READY_WITHIN, Supervisor, create_directory, give_to_server,
};
use super::{Program, sql, with_path};
use crate::ports::free_ports;
use crate::run::unique_name;

/// Where Debian's package `galera-4` installs it.
const PROVIDER: &str = "/usr/lib/galera/libgalera_smm.so";
const NODES: u16 = 3;
/// Refused until a node has joined.
const READ: &str = "SELECT count(*) FROM mysql.user";
/// The ports of a node: for clients, for the group, and to receive changes and a copy of all data.
const PORTS: u16 = 4;

/// A private cluster. Dropping this ends it and removes its data.
#[derive(Debug)]
pub struct GaleraCluster {
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    supervisor: Supervisor,
    url: String,
}

impl GaleraCluster {
    /// Starts it. Returns when all nodes have joined.
    ///
    /// # Panics
    /// If they do not.
    pub async fn start() -> Self {
        let started = Self::launch().await;
        started.unwrap_or_else(|error| panic!("no Galera cluster: {error:#}"))
    }

    async fn launch() -> Result<Self> {
        ensure!(
            Path::new(PROVIDER).exists(),
            "Galera is not installed: run `make services`"
        );
        let first_port = free_ports(NODES * PORTS);
        let mut nodes = Vec::new();
        for number in 0..NODES {
            let node = Node::prepare(number, first_port)?;
            let directory = node.supervisor.directory();
            if number == 0 {
                sql::copy_data(&sql::template(Program::MariaDb).await?, directory).await?;
            } else {
                // The others get the data from a node.
                let data = directory.join("data");
                fs::create_dir(&data)?;
                give_to_server(&data)?;
            }
            node.supervisor.start()?;
            node.joins().await?;
            nodes.push(node);
        }
        Ok(Self { nodes })
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
}

impl Node {
    fn prepare(number: u16, first_port: u16) -> Result<Self> {
        let directory = create_directory("galera")?;
        let group = |number: u16| format!("127.0.0.1:{}", first_port + PORTS * number + 1);
        let port = first_port + PORTS * number;
        let mut command = sql::mariadb(directory.path(), port, None)?;
        let members: Vec<String> = (0..NODES).map(group).collect();
        let (address, changes) = (group(number), port + 2);
        command.args([
            "--wsrep-on=ON".to_owned(),
            format!("--wsrep-provider={PROVIDER}"),
            format!("--wsrep-cluster-address=gcomm://{}", members.join(",")),
            format!("--wsrep-node-address={address}"),
            format!("--wsrep-sst-receive-address=127.0.0.1:{}", port + 3),
            format!(
                "--wsrep-provider-options=gmcast.listen_addr=tcp://{address};\
                 ist.recv_addr=127.0.0.1:{changes};ist.recv_bind=127.0.0.1:{changes};\
                 gcache.size=16M;gcache.page_size=16M"
            ),
        ]);
        let settings = "--wsrep-sst-method=rsync --binlog-format=ROW --innodb-autoinc-lock-mode=2";
        command.args(settings.split(' '));
        if number == 0 {
            command.arg("--wsrep-new-cluster");
        }
        Ok(Self {
            supervisor: Supervisor::new(directory, "KILL", Some(&command))?,
            url: Program::MariaDb.url(port),
        })
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
