//! Network latency for a race: one proxy in front of each server of the replicas.
//!
//! The caller passes the servers' URLs and starts the replicas with the URLs that it gets back.
//! SQLite is part of the replica's process, so it cannot be delayed.

mod line;
mod proxy;
mod proxy_url;

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use self::proxy::Proxies;
use self::proxy_url::{Ensemble, ServerUrl};
use crate::race::Distance;

/// The settings that name the servers of a replica.
#[derive(Debug, Clone)]
pub struct ServerUrls {
    /// `DATABASE_URL`.
    pub database: SecretString,
    /// `REDIS_URL`.
    pub redis: Option<SecretString>,
    /// `ZOOKEEPER_CONNECT`.
    pub zookeeper: Option<String>,
}

/// The proxies of a race. Dropping this value closes them and their connections.
#[derive(Debug)]
pub struct DelayedServers {
    /// The same servers, reached through the proxies.
    pub urls: ServerUrls,
    /// The added round trip.
    pub distance: Distance,
    _proxies: Proxies,
}

impl DelayedServers {
    /// Starts a proxy for each server and measures a round trip through one proxy. The servers
    /// need not be running yet.
    ///
    /// # Errors
    /// One line that names the setting to change. It contains no password.
    pub async fn start(rtt: Duration, servers: &ServerUrls) -> Result<Self, String> {
        let database = ServerUrl::from_database_url(servers.database.expose_secret())
            .map_err(|reason| format!("DATABASE_URL: {reason}"))?;
        let redis = servers.redis.as_ref().map(ExposeSecret::expose_secret);
        let redis = redis.map(ServerUrl::from_redis_url).transpose();
        let redis = redis.map_err(|reason| format!("REDIS_URL: {reason}"))?;
        let zookeeper = servers.zookeeper.as_deref().map(str::parse).transpose();
        let zookeeper: Option<Ensemble> =
            zookeeper.map_err(|reason| format!("ZOOKEEPER_CONNECT: {reason}"))?;
        let embedded = database.is_none();
        let delayed = [
            (database.is_some(), "the SQL database"),
            (redis.is_some(), "Redis"),
            (zookeeper.is_some(), "ZooKeeper"),
        ];
        let delayed: Vec<_> = delayed
            .into_iter()
            .filter_map(|(is_set, name)| is_set.then_some(name))
            .collect();
        if delayed.is_empty() {
            return Err(
                "--rtt: there is nothing to delay, because SQLite is part of the process. Set \
                 DATABASE_URL to a server, or set REDIS_URL or ZOOKEEPER_CONNECT"
                    .to_owned(),
            );
        }
        let mut proxies = Proxies::new(rtt);
        let mut urls = servers.clone();
        if let Some(database) = database {
            urls.database = proxies.url(database).await?;
        }
        if let Some(redis) = redis {
            urls.redis = Some(proxies.url(redis).await?);
        }
        if let Some(ensemble) = zookeeper {
            let mut addresses = Vec::new();
            for server in ensemble.servers() {
                addresses.push(proxies.add(server.clone()).await?);
            }
            urls.zookeeper = Some(ensemble.with_addresses(&addresses));
        }
        Ok(Self {
            urls,
            distance: Distance {
                rtt,
                measured: proxies.measure().await?,
                delayed,
                embedded,
            },
            _proxies: proxies,
        })
    }
}

impl Proxies {
    async fn url(&mut self, url: ServerUrl) -> Result<SecretString, String> {
        let address = self.add(url.server().to_owned()).await?;
        Ok(url.with_address(address).into())
    }
}
