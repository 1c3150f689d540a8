//! Detects Redis Cluster, which is not supported.

use super::RedisStore;
use crate::StoreError;

impl RedisStore {
    /// Returns a problem if the server is part of a Redis Cluster. A cluster spreads the shards over
    /// several nodes, but the journal consumer reads all shards with one command.
    pub(crate) async fn cluster_problem(&self) -> Result<Option<&'static str>, StoreError> {
        let mut command = redis::cmd("INFO");
        let info: String = self.shared.read(command.arg("cluster")).await?;
        let enabled = info.lines().any(|line| line.trim() == "cluster_enabled:1");
        Ok(enabled.then_some(
            "Redis Cluster is not supported; set REDIS_URL to a single server, or to the address \
             of a primary",
        ))
    }
}
