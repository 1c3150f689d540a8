//! Three ZooKeeper servers, the leader of which can be cut off from the others.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::supervisor::{POLL_INTERVAL, READY_WITHIN, Supervisor, create_directory, write_file};
use super::zookeeper::{ensemble_command, probe};
use crate::ports::{free_port, is_free};
use crate::proxy::{Mode, Proxy};
use crate::run::announce;
use crate::signals;

/// How long the followers wait for the leader, in ticks of 500 ms, and how long the leader waits for
/// them: it stays in office while they elect another one.
const PATIENCE: [u32; SERVERS] = [4, 4, 1_200];
const SERVERS: usize = 3;
/// The first leader.
const LEADER: usize = SERVERS - 1;

/// An ensemble whose third server is the leader. Dropping this ends it and removes its data.
#[derive(Debug)]
pub struct ZooKeeperEnsemble {
    servers: Vec<Server>,
    /// The connections between the leader and the followers.
    links: Vec<Proxy>,
}

#[derive(Debug)]
struct Server {
    supervisor: Supervisor,
    port: u16,
}

/// The ports at which a server listens to the other servers.
struct Peer {
    quorum: u16,
    election: u16,
}

impl ZooKeeperEnsemble {
    /// Starts it with ticks of 500 ms, so that sessions last at least a second. Returns when the third
    /// server is the leader. If they do not elect it, or one ends at once, three others are started.
    ///
    /// # Panics
    /// If these do not start either.
    pub async fn start() -> Self {
        let started = match Self::launch().await {
            Err(error) => {
                announce(format_args!(
                    "the ZooKeeper ensemble did not start: {error:#}"
                ));
                Self::launch().await
            }
            started => started,
        };
        started.unwrap_or_else(|error| panic!("no ZooKeeper ensemble: {error:#}"))
    }

    async fn launch() -> Result<Self> {
        let peer = |_| Peer {
            quorum: free_port(),
            election: free_port(),
        };
        let peers: [Peer; SERVERS] = std::array::from_fn(peer);
        let mut links = Vec::new();
        let mut servers = Vec::new();
        for (index, patience) in PATIENCE.into_iter().enumerate() {
            let mut addresses = String::new();
            for (other, peer) in peers.iter().enumerate() {
                // The third server and another one.
                let is_cuttable = index != other && index + other >= LEADER;
                let mut ports = [peer.quorum, peer.election];
                for port in ports.iter_mut().filter(|_| is_cuttable) {
                    let link = Proxy::to(format!("127.0.0.1:{port}")).await;
                    *port = link.address().port();
                    links.push(link);
                }
                let [quorum, election] = ports;
                writeln!(
                    addresses,
                    "server.{}=127.0.0.1:{quorum}:{election}",
                    other + 1
                )?;
            }
            let directory = create_directory("zookeeper")?;
            let settings = format!("tickTime=500\ninitLimit=60\nsyncLimit={patience}\n{addresses}");
            write_file(directory.path(), "myid", &(index + 1).to_string())?;
            let port = free_port();
            let command = ensemble_command(directory.path(), port, &settings)?;
            let supervisor = Supervisor::new(directory, "KILL", Some(&command))?;
            servers.push(Server { supervisor, port });
        }
        let election = peers[LEADER].election;
        let ensemble = Self { servers, links };
        ensemble.servers[LEADER].supervisor.start()?;
        let listens = async || !is_free(election);
        ensemble
            .reaches("the third server listens", listens)
            .await?;
        // Two servers elect the one with the greater number. With all three, the third may come too
        // late for the election of the others.
        ensemble.servers[1].supervisor.start()?;
        let leads = async || {
            ensemble
                .role(LEADER)
                .await
                .is_ok_and(|role| role == "leader")
        };
        ensemble.reaches("the third server leads", leads).await?;
        ensemble.servers[0].supervisor.start()?;
        let ready = async || {
            let mut all = true;
            for index in 0..SERVERS {
                all &= probe(&ensemble.address(index)).await.is_ok();
            }
            all
        };
        ensemble.reaches("all three servers answer", ready).await?;
        Ok(ensemble)
    }

    /// Polls `check` until it returns true. Fails if it does not in time, or if a server ends.
    async fn reaches(&self, what: &str, check: impl AsyncFn() -> bool) -> Result<()> {
        let deadline = Instant::now() + READY_WITHIN;
        while !check().await {
            let has_ended = self.servers.iter().any(|it| it.supervisor.has_ended());
            let is_late = Instant::now() >= deadline;
            ensure!(!has_ended && !is_late, "not so: {what}\n{}", self.logs());
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// The ends of the logs of all servers.
    fn logs(&self) -> String {
        let log = |server: &Server| format!("{}:\n{}", server.port, server.supervisor.log_tail());
        let logs: Vec<String> = self.servers.iter().map(log).collect();
        logs.join("\n")
    }

    /// The address of a server, `host:port`. Server 2 is the first leader, 0 and 1 follow it.
    pub fn address(&self, server: usize) -> String {
        format!("127.0.0.1:{}", self.servers[server].port)
    }

    /// What a server says that it is: `leader` or `follower`.
    pub async fn role(&self, server: usize) -> Result<String> {
        let answer = super::ask(&self.address(server), "srvr").await?;
        let role = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        Ok(role.context("the server has no role")?.to_owned())
    }

    /// The process of a server.
    ///
    /// # Panics
    /// If the server was killed.
    pub fn process(&self, server: usize) -> Pid {
        let process = self.servers[server].supervisor.server();
        process.expect("the server was started")
    }

    /// Kills a server (`SIGKILL`).
    pub fn kill(&self, server: usize) {
        kill_process(self.process(server), Signal::KILL).expect("the server runs");
    }

    /// Stops a server (`SIGSTOP`), and returns once none of its threads is running.
    pub async fn stop(&self, server: usize) {
        signals::stop(self.process(server)).await;
    }

    /// Stops all traffic between the first leader and the others. Clients still reach it.
    pub async fn cut_leader_off(&self) {
        for link in &self.links {
            link.set(Mode::Blackhole).await;
        }
    }
}
