//! The servers that have the keys: one server, or the masters of a cluster.

use redis::{Cmd, FromRedisValue, RedisResult};

use super::cluster::Cluster;
use super::connection::{Connection, backend_error};
use super::scripts::Script;
use crate::shared::error::BackendError;

#[derive(Debug)]
pub(super) enum Servers {
    One(Connection),
    Cluster(Cluster),
}

impl Servers {
    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    pub(super) async fn connected(&self, key: &str) -> Result<(), BackendError> {
        match self {
            Self::One(connection) => connection.connected().await,
            Self::Cluster(cluster) => cluster.connected(key).await,
        }
    }

    async fn query<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<RedisResult<T>, BackendError> {
        match self {
            Self::One(connection) => connection.query(command, false).await,
            Self::Cluster(cluster) => cluster.query(key, command).await,
        }
    }

    /// Sends a command with one key.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<T, BackendError> {
        self.query(key, command).await?.map_err(backend_error)
    }

    /// Runs a script by its hash, or by its text if the server does not know it yet. On a cluster, its keys
    /// have one hash tag.
    pub(super) async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, BackendError> {
        let mut keys = keys.to_vec();
        if self.is_cluster() && keys.len() > 1 && !script.while_moving {
            keys.push(format!("{}:absent", keys[0]));
        }
        match self
            .query(&keys[0], &script.by_hash(&keys, arguments))
            .await?
        {
            Err(error) if Script::is_unknown(&error) => {
                self.run(&keys[0], &script.by_text(&keys, arguments)).await
            }
            answer => answer.map_err(backend_error),
        }
    }

    /// Fails if no server answers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        match self {
            Self::One(_) => self.run::<String>("", &redis::cmd("PING")).await.map(drop),
            Self::Cluster(cluster) => cluster.ping().await,
        }
    }

    pub(super) fn open(&self) {
        match self {
            Self::One(connection) => connection.open(),
            Self::Cluster(cluster) => cluster.open(),
        }
    }

    /// Closes the connections until [`open`](Self::open).
    pub(super) fn close(&self) {
        match self {
            Self::One(connection) => connection.close(),
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}
