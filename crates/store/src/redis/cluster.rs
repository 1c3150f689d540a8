//! Redis Cluster, which this home does not speak to.

use super::RedisStore;
use crate::StoreError;

impl RedisStore {
    /// Why this server is no home for stock, if it is part of a cluster: the shards lie on several
    /// nodes there, and each is asked here for all of them.
    pub(crate) async fn cluster_problem(&self) -> Result<Option<&'static str>, StoreError> {
        let mut command = redis::cmd("INFO");
        let told: String = self.shared.read(command.arg("cluster")).await?;
        let enabled = told.lines().any(|line| line.trim() == "cluster_enabled:1");
        Ok(enabled.then_some(
            "Redis Cluster is not supported: stock can live on one server only, or on a primary \
             behind one address; name such a one in REDIS_URL",
        ))
    }
}
