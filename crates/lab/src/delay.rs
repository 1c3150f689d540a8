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
use self::proxy_url::{database_server, redis_server, with_address, zookeeper_servers};
use crate::race::Distance;

/// The settings that name the servers of a replica.
#[derive(Debug, Clone)]
pub struct ServerUrls {
    /// `DATABASE_URL`.
    pub database: SecretString,
    /// `REDIS_URL`.
    pub redis: Option<SecretString>,
    /// `REDLOCK_URLS`.
    pub redlock: Option<SecretString>,
    /// `ZOOKEEPER_CONNECT`.
    pub zookeeper: Option<String>,
}

impl ServerUrls {
    /// Whether one of them is another process.
    pub(crate) fn can_be_delayed(&self) -> bool {
        !self.is_embedded()
            || self.redis.is_some()
            || self.redlock.is_some()
            || self.zookeeper.is_some()
    }

    /// Whether the database is SQLite. The URL is not parsed: a file path need not be a valid one.
    fn is_embedded(&self) -> bool {
        self.database.expose_secret().starts_with("sqlite:")
    }
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
    /// One line: what has failed, and the setting if one is wrong. It contains no password.
    pub async fn start(rtt: Duration, mut urls: ServerUrls) -> Result<Self, String> {
        let mut proxies = Proxies::new(rtt);
        let mut delayed = Vec::new();
        let embedded = urls.is_embedded();
        if !embedded {
            let (url, server) = database_server(urls.database.expose_secret())
                .map_err(|reason| format!("DATABASE_URL: {reason}"))?;
            urls.database = with_address(url, proxies.add(server).await?).into();
            delayed.push("the SQL database");
        }
        if let Some(redis) = &mut urls.redis {
            let (url, server) = redis_server(redis.expose_secret())
                .map_err(|reason| format!("REDIS_URL: {reason}"))?;
            *redis = with_address(url, proxies.add(server).await?).into();
            delayed.push("Redis");
        }
        if let Some(masters) = &mut urls.redlock {
            let mut addresses = Vec::new();
            for master in masters.expose_secret().split(',') {
                let (url, server) =
                    redis_server(master).map_err(|reason| format!("REDLOCK_URLS: {reason}"))?;
                addresses.push(with_address(url, proxies.add(server).await?));
            }
            *masters = addresses.join(",").into();
            delayed.push("the Redis masters");
        }
        if let Some(connect) = &mut urls.zookeeper {
            let (servers, chroot) = zookeeper_servers(connect)
                .map_err(|reason| format!("ZOOKEEPER_CONNECT: {reason}"))?;
            let mut addresses = Vec::new();
            for server in servers {
                addresses.push(proxies.add(server).await?.to_string());
            }
            *connect = addresses.join(",") + &chroot;
            delayed.push("ZooKeeper");
        }
        if delayed.is_empty() {
            return Err(
                "--rtt: there is nothing to delay, because SQLite is part of the process. Set \
                 DATABASE_URL to a server, or set REDIS_URL, REDLOCK_URLS or ZOOKEEPER_CONNECT"
                    .to_owned(),
            );
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
