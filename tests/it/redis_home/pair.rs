//! Two Redis servers whose master is replaced by sentinels.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD_NO_PAD as BASE64;
use stocklock_testkit::eventually;
use stocklock_testkit::servers::RedisSentinels;
use tokio::time::Instant;
use uuid::Uuid;

use super::{line, try_command};
use crate::faults::SOON;
use crate::support::services::{PrivateServer, connect_to_redis};

/// Sentinels try again after four seconds, and on a busy machine that may happen several times.
const PATIENCE: Duration = SOON.saturating_mul(3);

/// Several times the two seconds after which a sentinel gives up, if the replica is not promoted. It does not
/// begin again by itself while the master answers.
const GIVEN_UP: Duration = Duration::from_secs(8);

/// A master, a replica, and the sentinels that watch them.
pub(super) struct Pair {
    pub(super) servers: [PrivateServer; 2],
    sentinels: RedisSentinels,
}

impl Pair {
    pub(super) async fn start() -> Self {
        let log = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];
        let servers = [
            PrivateServer::redis(&log).await,
            PrivateServer::redis(&log).await,
        ];
        follow(&servers[1], &servers[0]).await;
        let sentinels = RedisSentinels::watching(servers[0].port()).await;
        Self { servers, sentinels }
    }

    /// The URL of the master, for clients that ask the sentinels.
    pub(super) fn url(&self) -> String {
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

    /// Returns the master as soon as the other server is its replica. After a pause of the master, the
    /// sentinels make it a replica within ten seconds.
    pub(super) async fn settled(&self) -> &PrivateServer {
        let mut settled = None;
        eventually("there is a master with a replica", PATIENCE, async || {
            let Some([master, replica]) = self.roles().await else {
                return false;
            };
            settled = Some(master);
            replication(master).await.contains("state=online")
                && replication(replica).await.contains("master_link_status:up")
        })
        .await;
        settled.expect("it is settled")
    }

    /// Replaces the master, by a command or because it is killed. Returns when the other server is the
    /// master, and the former one its replica. Returns operations that the new master had received, and
    /// that both servers have.
    pub(super) async fn fail_over(&self, kill: bool) -> BTreeSet<String> {
        let [old, new] = self.roles().await.expect("the sentinel answers");
        if kill {
            old.kill9();
        } else {
            let fails_over = async || self.sentinels.fail_over().await.is_ok();
            eventually("the sentinel begins", SOON, fails_over).await;
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
        let received = operations(new).await;
        if kill {
            old.restart().await;
        }
        follow(old, new).await;
        has_copied(old, new, &received).await;
        received
    }
}

/// Returns when the replica has these operations, or its master has not. Otherwise the next failover may lose
/// some of them. Those without a key expire soon.
pub(super) async fn has_copied(
    replica: &PrivateServer,
    master: &PrivateServer,
    received: &BTreeSet<String>,
) {
    eventually("the replica has the operations", SOON, async || {
        let (there, copied) = (operations(master).await, operations(replica).await);
        let is_copied = |operation| copied.contains(operation) || !there.contains(operation);
        received.iter().all(is_copied)
    })
    .await;
}

/// All operations in the dedup entries of a server, also of a replica in a cluster.
const OPERATIONS: &str = "
local found = {}
for _, bucket in ipairs(redis.call('KEYS', 'dedup:*')) do
  for _, entry in ipairs(redis.call('HVALS', bucket)) do table.insert(found, entry) end
end
return found";

/// The operations in the dedup entries of a server.
pub(super) async fn operations(server: &PrivateServer) -> BTreeSet<String> {
    let mut connection = connect_to_redis(server.url()).await.expect("it answers");
    let mut commands = redis::pipe();
    // Refused by a server without a cluster.
    commands.cmd("READONLY").cmd("EVAL").arg(OPERATIONS).arg(0);
    let answers = commands.ignore_errors().query_async(&mut connection).await;
    let [_, entries]: [redis::Value; 2] = answers.expect("it answers");
    let entries = entries.extract_error().expect("it runs the script");
    let entries: Vec<String> = redis::from_redis_value(entries).expect("texts");
    entries.iter().map(|entry| operation(entry, 6)).collect()
}

/// The operation in this field of a dedup entry or of a movement in the journal.
pub(super) fn operation(text: &str, field: usize) -> String {
    let operation = text.split('\t').nth(field).expect("a movement");
    let operation = BASE64.decode(operation).expect("an operation id");
    let id = Uuid::from_slice(&operation).expect("an operation id");
    id.to_string()
}

async fn replication(server: &PrivateServer) -> String {
    let info = try_command(server.url(), &["INFO", "replication"]).await;
    info.unwrap_or_default()
}

/// Returns when `replica` has the data of `master`.
pub(super) async fn follow(replica: &PrivateServer, master: &PrivateServer) {
    let port = master.port();
    line(replica.url(), &format!("REPLICAOF 127.0.0.1 {port}")).await;
    eventually("the replica is connected", SOON, async || {
        replication(master).await.contains("state=online")
    })
    .await;
}
