//! Checks each server's version, mode and settings.

use redis::aio::MultiplexedConnection;

use super::RedisStore;
use super::binding::field;
use super::errors::{bad_answer, reading};
use crate::StoreError;

/// The oldest major version with all commands that the scripts use.
const OLDEST: u32 = 7;

impl RedisStore {
    /// Returns one sentence for each setting that breaks a guarantee or risks data loss.
    pub(crate) async fn unsafe_settings(&self) -> Result<Vec<String>, StoreError> {
        // Any server, whether or not the ledger is bound to it.
        let connections = self.binding.connect().await?;
        let mut problems = Vec::new();
        for (node, mut connection) in connections.all() {
            let found = self.problems_of(&mut connection).await;
            // A node that fails must not hide the problems of the others.
            let found = found.unwrap_or_else(|error| {
                vec![format!(
                    "the settings of {node} could not be checked: {error}"
                )]
            });
            for problem in found {
                if !problems.contains(&problem) {
                    problems.push(problem);
                }
            }
        }
        Ok(problems)
    }

    async fn problems_of(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<String>, StoreError> {
        let info = redis::cmd("INFO").query_async(connection).await;
        let info: String = info.map_err(reading)?;
        let appendonly = setting(connection, "appendonly").await?;
        let appendfsync = setting(connection, "appendfsync").await?;
        let policy = setting(connection, "maxmemory-policy").await?;
        let lazy_expire = setting(connection, "lazyfree-lazy-expire").await?;
        let min_replicas = setting(connection, "min-replicas-to-write").await?;
        let max_lag = setting(connection, "min-replicas-max-lag").await?;
        let problems = [
            version_problem(&info),
            persistence_problem(&appendonly, &appendfsync).map(str::to_owned),
            eviction_problem(&policy),
            expiry_problem(&lazy_expire).map(str::to_owned),
            replicas_problem(&info, &min_replicas, &max_lag),
            wait_problem(&info, self.options.wait_replicas),
            self.cluster_problem(&info),
        ];
        Ok(problems.into_iter().flatten().collect())
    }

    fn cluster_problem(&self, info: &str) -> Option<String> {
        let is_node = field(info, "cluster_enabled").is_some_and(|enabled| enabled.trim() == "1");
        (is_node && !self.nodes.are_cluster()).then(|| {
            "REDIS_URL leads to a node of a Redis Cluster, which refuses most SKUs; set it to \
             redis+cluster://host:port,…"
                .to_owned()
        })
    }
}

async fn setting(connection: &mut MultiplexedConnection, name: &str) -> Result<String, StoreError> {
    let mut command = redis::cmd("CONFIG");
    let answer = command.arg("GET").arg(name).query_async(connection).await;
    let answer: Vec<String> = answer.map_err(reading)?;
    match &answer[..] {
        [_, value] => Ok(value.clone()),
        _ => Err(bad_answer(answer)),
    }
}

fn version_problem(info: &str) -> Option<String> {
    let version = field(info, "redis_version")?;
    let major: u32 = version.split('.').next()?.parse().ok()?;
    (major < OLDEST).then(|| {
        format!("Redis has version {version}; Redis-home stock needs Redis {OLDEST} or later")
    })
}

fn persistence_problem(appendonly: &str, appendfsync: &str) -> Option<&'static str> {
    match (appendonly, appendfsync) {
        ("yes", "always") => None,
        ("yes", _) => Some(
            "Redis acknowledges sales before they are on its disk, and may lose them if its machine \
             crashes; set appendfsync always",
        ),
        _ => Some(
            "Redis has no append-only file: if it stops, sales that are not yet in SQL are lost and \
             their units can be sold again; set appendonly yes and appendfsync always",
        ),
    }
}

fn eviction_problem(policy: &str) -> Option<String> {
    let lost = match policy {
        "noeviction" => return None,
        volatile if volatile.starts_with("volatile-") => {
            "this loses dedup entries, so that a retry sells again"
        }
        _ => "this loses levels, and journals with sales that are not yet in SQL",
    };
    Some(format!(
        "Redis evicts ({policy}) when its memory is full: {lost}; set maxmemory-policy noeviction"
    ))
}

/// A bucket of dedup entries expires as a whole, and may have millions of them.
fn expiry_problem(lazy_expire: &str) -> Option<&'static str> {
    (lazy_expire != "yes").then_some(
        "Redis stops for up to seconds when it deletes old dedup entries; set lazyfree-lazy-expire yes",
    )
}

/// A primary that is cut off from its replicas goes on selling, and loses these sales when a replica
/// takes over. A server without replicas has no failover.
fn replicas_problem(info: &str, min_replicas: &str, max_lag: &str) -> Option<String> {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let replicas = number(field(info, "connected_slaves")?);
    // Redis treats 0 in one of them as 0 in both.
    let needed = number(min_replicas) * number(max_lag).min(1);
    if replicas > 0 && needed == 0 {
        return Some(format!(
            "Redis has {replicas} replicas, but sells on if it loses them, and a failover then loses these \
             sales; set min-replicas-to-write 1 and min-replicas-max-lag 10"
        ));
    }
    (needed > replicas).then(|| {
        format!(
            "Redis refuses every sale, because min-replicas-to-write is {needed} and {replicas} replicas \
             are connected; start the replicas"
        )
    })
}

/// A change that too few replicas confirm is answered 504, although it is made.
fn wait_problem(info: &str, wanted: u32) -> Option<String> {
    let replicas: u32 = field(info, "connected_slaves")?.trim().parse().ok()?;
    (wanted > replicas).then(|| {
        format!(
            "every sale in Redis is answered 504, because REDIS_WAIT_REPLICAS is {wanted} and {replicas} \
             replicas are connected; start the replicas"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_old_version_is_a_problem() {
        let check = |version| {
            version_problem(&format!(
                "# Server\r\nredis_version:{version}\r\nos:Linux\r\n"
            ))
        };
        for fine in ["7.0.0", "7.4.2", "8.0.1", "255.255.255", "unstable"] {
            assert_eq!(check(fine), None, "{fine}");
        }
        for old in ["6.2.14", "5.0.7", "6"] {
            let problem = check(old).expect("the version is too old");
            assert!(problem.contains(old), "{problem}");
            assert!(problem.contains("needs Redis 7"), "{problem}");
        }
        assert_eq!(version_problem("# Server\r\n"), None);
    }

    #[test]
    fn fewer_replicas_than_waited_for_are_a_problem() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:1\r\n";
        for fine in [0, 1] {
            assert_eq!(wait_problem(info, fine), None, "{fine}");
        }
        let problem = wait_problem(info, 2).expect("a replica is missing");
        assert!(
            problem.contains("REDIS_WAIT_REPLICAS is 2 and 1 replicas"),
            "{problem}"
        );
    }
}
