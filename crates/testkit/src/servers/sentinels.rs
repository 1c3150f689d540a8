//! Three Redis Sentinels that watch one master.

use anyhow::{Result, ensure};
use redis::{FromRedisValue, RedisResult};
use tokio::time::{Instant, sleep};

use super::installed::server_command;
use super::redis::connect_to_redis;
use super::supervisor::{POLL_INTERVAL, READY_WITHIN, Supervisor, create_directory, write_file};
use crate::ports::free_port;

/// The name of the master.
const MASTER: &str = "stock";
/// How many sentinels must agree that the master is down.
const QUORUM: u32 = 2;

/// Three private sentinels. Dropping this ends them.
#[derive(Debug)]
pub struct RedisSentinels {
    ports: Vec<u16>,
    _supervisors: Vec<Supervisor>,
}

impl RedisSentinels {
    /// Starts sentinels that replace the master at this port after half a second without an answer.
    /// Returns when they know each other and a replica of the master.
    ///
    /// # Panics
    /// If they do not start.
    pub async fn watching(master: u16) -> Self {
        let started = Self::start(master).await;
        started.unwrap_or_else(|error| panic!("no private sentinels: {error:#}"))
    }

    /// The URL of the master, for clients that ask these sentinels.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self
            .ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// The port of the master that the first sentinel names.
    ///
    /// # Errors
    /// The sentinel does not answer.
    pub async fn master(&self) -> RedisResult<u16> {
        let (_, port): (String, u16) = self.ask(0, "get-master-addr-by-name").await?;
        Ok(port)
    }

    /// Makes the replica the master.
    ///
    /// # Errors
    /// The sentinel does not answer, or no replica is ready.
    pub async fn fail_over(&self) -> RedisResult<()> {
        self.ask(0, "FAILOVER").await
    }

    /// Sends a command about the master to one of the sentinels.
    async fn ask<T: FromRedisValue>(&self, sentinel: usize, command: &str) -> RedisResult<T> {
        let url = format!("redis://127.0.0.1:{}", self.ports[sentinel]);
        let mut connection = connect_to_redis(&url).await?;
        let mut words = redis::cmd("SENTINEL");
        words
            .arg(command)
            .arg(MASTER)
            .query_async(&mut connection)
            .await
    }

    async fn start(master: u16) -> Result<Self> {
        let (mut ports, mut supervisors) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let (port, directory) = (free_port(), create_directory("sentinel")?);
            let settings = format!(
                "bind 127.0.0.1\nport {port}\ndir {}\n\
                 sentinel monitor {MASTER} 127.0.0.1 {master} {QUORUM}\n\
                 sentinel down-after-milliseconds {MASTER} 500\n\
                 sentinel failover-timeout {MASTER} 2000\n",
                directory.path().display()
            );
            let mut command = server_command("redis-server")?;
            command.arg(write_file(directory.path(), "sentinel.conf", &settings)?);
            let supervisor = Supervisor::new(directory, "KILL", Some(command.arg("--sentinel")))?;
            supervisor.start()?;
            ports.push(port);
            supervisors.push(supervisor);
        }
        let started = Self {
            ports,
            _supervisors: supervisors,
        };
        let deadline = Instant::now() + READY_WITHIN;
        for sentinel in 0..started.ports.len() {
            while !started.knows_all(sentinel).await.unwrap_or(false) {
                ensure!(
                    Instant::now() < deadline,
                    "sentinel {sentinel} is not ready"
                );
                sleep(POLL_INTERVAL).await;
            }
        }
        Ok(started)
    }

    /// Whether this sentinel knows the two others and a replica.
    async fn knows_all(&self, sentinel: usize) -> RedisResult<bool> {
        let others: Vec<redis::Value> = self.ask(sentinel, "sentinels").await?;
        let replicas: Vec<redis::Value> = self.ask(sentinel, "replicas").await?;
        Ok(others.len() == 2 && replicas.len() == 1)
    }
}
