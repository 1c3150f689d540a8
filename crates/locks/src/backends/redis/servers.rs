//! The servers that have the keys: one server, or the masters of a cluster.

use redis::{Cmd, FromRedisValue};

use super::cluster::Cluster;
use super::connection::Connection;
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

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<T, BackendError> {
        match self {
            Self::One(connection) => connection.run(command).await,
            Self::Cluster(cluster) => cluster.run(key, command).await,
        }
    }

    /// Runs a script. On a cluster, its keys have one hash tag.
    pub(super) async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<T, BackendError> {
        match self {
            Self::One(connection) => connection.script(script, keys, arguments).await,
            Self::Cluster(cluster) => cluster.script(script, keys, arguments).await,
        }
    }

    /// Fails if no server answers.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        match self {
            Self::One(connection) => connection
                .run::<String>(&redis::cmd("PING"))
                .await
                .map(drop),
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
