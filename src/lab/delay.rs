//! Services at a distance: the replicas of a race reach their services through proxies that add a
//! round trip's time, so that one sees what each strategy costs where they are a network away.
//!
//! The database, Redis and `ZooKeeper` are where they are; only the way there is longer. A database
//! that is in the process has no way there.

mod line;
mod proxy;
mod reroute;

use std::net::SocketAddr;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use self::proxy::Proxies;
use self::reroute::{Ensemble, ServerUrl};
use super::race::Distance;
use crate::config::{DatabaseConfig, ServicesConfig};

/// Settings that lead to the services through proxies. Dropping it closes these.
#[derive(Debug)]
pub struct DistantServices {
    /// Where the database seems to be.
    pub database: DatabaseConfig,
    /// Where the services beside it seem to be.
    pub services: ServicesConfig,
    /// How far away they are.
    pub distance: Distance,
    _proxies: Proxies,
}

/// The settings that can be led through proxies.
struct Routes {
    database: Option<ServerUrl>,
    redis: Option<ServerUrl>,
    zookeeper: Option<Ensemble>,
}

impl DistantServices {
    /// Puts a proxy before each server that the settings name, and measures what a round trip
    /// through one takes. No server has to answer yet.
    ///
    /// # Errors
    /// One line that names the setting to change; it has no password in it.
    pub async fn start(
        rtt: Duration,
        database: &DatabaseConfig,
        services: &ServicesConfig,
    ) -> Result<Self, String> {
        let routes = Routes::of(database, services)?;
        let delayed = routes.names();
        if delayed.is_empty() {
            return Err(
                "--rtt: there is nothing to delay, since SQLite is in the process: set \
                 DATABASE_URL to a server, or REDIS_URL, or ZOOKEEPER_CONNECT"
                    .to_owned(),
            );
        }
        let embedded = routes.database.is_none();
        let proxies = Proxies::start(rtt)?;
        let (database, services) = routes.through(&proxies, database, services).await?;
        Ok(Self {
            database,
            services,
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

impl Routes {
    fn of(database: &DatabaseConfig, services: &ServicesConfig) -> Result<Self, String> {
        let redis = services.redis_url.as_ref().map(ExposeSecret::expose_secret);
        let redis = redis.map(ServerUrl::of_redis).transpose();
        let zookeeper = services.zookeeper_connect.as_deref();
        let zookeeper = zookeeper.map(Ensemble::of).transpose();
        Ok(Self {
            database: ServerUrl::of_database(database.url())
                .map_err(|why| format!("DATABASE_URL: {why}"))?,
            redis: redis.map_err(|why| format!("REDIS_URL: {why}"))?,
            zookeeper: zookeeper.map_err(|why| format!("ZOOKEEPER_CONNECT: {why}"))?,
        })
    }

    /// What is delayed.
    fn names(&self) -> Vec<&'static str> {
        let named = [
            (self.database.is_some(), "the SQL database"),
            (self.redis.is_some(), "Redis"),
            (self.zookeeper.is_some(), "ZooKeeper"),
        ];
        let named = named.into_iter().filter(|(is_there, _)| *is_there);
        named.map(|(_, name)| name).collect()
    }

    async fn through(
        self,
        proxies: &Proxies,
        database: &DatabaseConfig,
        services: &ServicesConfig,
    ) -> Result<(DatabaseConfig, ServicesConfig), String> {
        let mut database = database.clone();
        let mut services = services.clone();
        if let Some(url) = self.database {
            database.database_url = Some(url_through(proxies, url).await?);
        }
        if let Some(url) = self.redis {
            services.redis_url = Some(url_through(proxies, url).await?);
        }
        if let Some(ensemble) = self.zookeeper {
            let mut addresses: Vec<SocketAddr> = Vec::new();
            for server in ensemble.servers() {
                addresses.push(proxies.before(server.clone()).await?);
            }
            services.zookeeper_connect = Some(ensemble.through(&addresses));
        }
        Ok((database, services))
    }
}

async fn url_through(proxies: &Proxies, url: ServerUrl) -> Result<SecretString, String> {
    let address = proxies.before(url.server().to_owned()).await?;
    Ok(SecretString::from(url.through(address)))
}
