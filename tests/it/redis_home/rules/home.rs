//! The Redis servers that faults happen to.

use stocklock_testkit::run::rng;
use stocklock_testkit::servers::RedisCluster;

use crate::redis_home::cluster::LOGGED;
use crate::redis_home::pair::Pair;
use crate::support::services::PrivateServer;

/// The Redis that the stock is in.
pub(super) enum Home {
    Single(PrivateServer),
    /// A sale is acknowledged if the replica has it.
    Replicated(Pair),
    /// The same, for each of the masters.
    Cluster(RedisCluster),
}

/// Which [`Home`] to start.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Single,
    Replicated,
    Cluster,
}

impl Home {
    pub(super) async fn start(kind: Kind) -> Self {
        match kind {
            Kind::Replicated => Self::Replicated(Pair::start().await),
            Kind::Cluster => Self::Cluster(RedisCluster::start(&LOGGED).await),
            Kind::Single => Self::Single(PrivateServer::redis(&LOGGED).await),
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url().to_owned(),
            Self::Replicated(pair) => pair.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    /// How many servers must have a sale before it is acknowledged, besides the one that sells.
    pub(super) fn replicas(&self) -> &'static str {
        match self {
            Self::Single(_) => "0",
            Self::Replicated(_) | Self::Cluster(_) => "1",
        }
    }

    /// A server that sells.
    pub(super) async fn master(&self) -> &PrivateServer {
        match self {
            Self::Single(server) => server,
            Self::Replicated(pair) => pair.settled().await,
            Self::Cluster(cluster) => {
                cluster.settled().await;
                &cluster.nodes()[random_master(cluster).await]
            }
        }
    }
}

pub(super) async fn random_master(cluster: &RedisCluster) -> usize {
    let masters = cluster.masters().await;
    masters[rng().usize(..masters.len())]
}
