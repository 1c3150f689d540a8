//! Commands to a Redis without the service, and two Redis servers whose master is replaced by sentinels.
//!
//! A Redis to share is [`fresh_redis`](super::services::fresh_redis). One to pause, kill or restart at the
//! same port is [`PrivateServer::redis`], and a cluster is [`RedisCluster`].

use std::time::Duration;

use redis::{FromRedisValue, RedisResult};
use stocklock_testkit::eventually;
pub(crate) use stocklock_testkit::servers::RedisCluster;
use stocklock_testkit::servers::{RedisSentinels, connect_to_redis};
use tokio::time::Instant;

use super::services::PrivateServer;

/// Sentinels try again after four seconds, and on a busy machine that may happen several times.
const PATIENCE: Duration = Duration::from_mins(1);

/// Several times the two seconds after which a sentinel gives up, if the replica is not promoted. It does
/// not begin again by itself while the master answers.
const GIVEN_UP: Duration = Duration::from_secs(8);

/// Runs one command on the Redis at `url`.
pub(crate) async fn try_command<T: FromRedisValue>(url: &str, words: &[&str]) -> RedisResult<T> {
    let mut connection = connect_to_redis(url).await?;
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).query_async(&mut connection).await
}

/// The same for a command that must succeed.
pub(crate) async fn command<T: FromRedisValue>(url: &str, words: &[&str]) -> T {
    let answer = try_command(url, words).await;
    answer.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

pub(crate) async fn counters(url: &str) -> Vec<String> {
    command(url, &["KEYS", "stock:*"]).await
}

/// A master, a replica, and the sentinels that watch them.
pub(crate) struct Pair {
    pub(crate) servers: [PrivateServer; 2],
    sentinels: RedisSentinels,
}

impl Pair {
    pub(crate) async fn start() -> Self {
        // Without it, a master waits five seconds before it sends its data.
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let servers = [
            PrivateServer::redis(&at_once).await,
            PrivateServer::redis(&at_once).await,
        ];
        follow(&servers[1], &servers[0]).await;
        let sentinels = RedisSentinels::watching(servers[0].port()).await;
        Self { servers, sentinels }
    }

    /// The URL of the master, for clients that ask the sentinels.
    pub(crate) fn url(&self) -> String {
        self.sentinels.url()
    }

    /// The server that the sentinels call the master, and the other one.
    async fn roles(&self) -> Option<[&PrivateServer; 2]> {
        let master = self.sentinels.master().await.ok()?;
        let [first, second] = &self.servers;
        Some(if first.port() == master {
            [first, second]
        } else {
            [second, first]
        })
    }

    pub(crate) async fn master(&self) -> &PrivateServer {
        let [master, _] = self.roles().await.expect("the sentinel answers");
        master
    }

    /// Cuts the replica off, so that it does not get what the master gets from now on. Replace the master
    /// within five seconds: sentinels do not promote a replica that was cut off for longer.
    pub(crate) async fn let_the_replica_lag(&self) {
        let url = self.master().await.url();
        command::<()>(url, &["ACL", "SETUSER", "default", "-psync", "-sync"]).await;
        command::<()>(url, &["CLIENT", "KILL", "TYPE", "replica"]).await;
    }

    /// Replaces the master, by a command or because it is killed. A killed one is started again. Returns
    /// when the other server is the master, and the former one its replica.
    pub(crate) async fn fail_over(&self, kill: bool) {
        let [old, new] = self.roles().await.expect("the sentinel answers");
        if kill {
            old.kill9();
        } else {
            let fails_over = async || self.sentinels.fail_over().await.is_ok();
            eventually("the sentinel begins", PATIENCE, fails_over).await;
        }
        let mut began = Instant::now();
        eventually("the replica is the master", PATIENCE, async || {
            let master = self.roles().await.map(|[master, _]| master.port());
            if master == Some(new.port()) {
                return replication(new).await.contains("role:master");
            }
            if !kill && began.elapsed() > GIVEN_UP {
                began = Instant::now();
                self.sentinels.fail_over().await.ok();
            }
            false
        })
        .await;
        if kill {
            old.restart().await;
        }
        follow(old, new).await;
    }
}

async fn replication(server: &PrivateServer) -> String {
    let info = try_command(server.url(), &["INFO", "replication"]).await;
    info.unwrap_or_default()
}

/// Returns when `replica` has the data of `master`.
async fn follow(replica: &PrivateServer, master: &PrivateServer) {
    let port = master.port().to_string();
    command::<()>(replica.url(), &["REPLICAOF", "127.0.0.1", &port]).await;
    eventually("the replica is connected", PATIENCE, async || {
        replication(master).await.contains("state=online")
    })
    .await;
}
