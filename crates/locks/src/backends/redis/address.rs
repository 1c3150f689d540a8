//! The address of a Redis: one server, the master that Redis Sentinel names, or the nodes of a cluster.
//!
//! Guarantee: a connection that was opened with the help of Sentinel leads to a server that was the master
//! after the connection was open. All sentinels are asked again for each connection, and the first one that
//! names a master decides: a failover needs no restart, and a sentinel that does not answer costs no time.

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError,
    RedisResult, Role, TlsMode,
};

use super::cluster::Nodes;
use super::hosts::{parse_hosts, split_path};

/// The port of a sentinel whose address has none.
const SENTINEL_PORT: &str = "26379";

/// The server, or how to find it.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Server(Client),
    Sentinel(Sentinels),
    Cluster(Nodes),
}

/// The sentinels, and the master that they know.
#[derive(Debug, Clone)]
pub(super) struct Sentinels {
    addresses: Vec<ConnectionAddr>,
    name: String,
    /// The user, the password and the database at the master.
    settings: RedisConnectionInfo,
    is_tls: bool,
}

impl Address {
    pub(super) fn parse(url: &str) -> RedisResult<Self> {
        if let Some((scheme, rest)) = url.split_once("+sentinel://") {
            return Sentinels::parse(scheme, rest).map(Self::Sentinel);
        }
        match url.split_once("+cluster://") {
            Some((scheme, rest)) => Nodes::parse(scheme, rest).map(Self::Cluster),
            None => Client::open(url).map(Self::Server),
        }
    }

    /// The server, the one that is the master now, or a node of the cluster that serves clients.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        match self {
            Self::Server(client) => Ok(client.clone()),
            Self::Sentinel(sentinels) => sentinels.master().await,
            Self::Cluster(nodes) => nodes.any().await,
        }
    }

    pub(super) async fn connect(
        &self,
        limits: &AsyncConnectionConfig,
    ) -> RedisResult<MultiplexedConnection> {
        let client = self.client().await?;
        let connecting = client.get_multiplexed_async_connection_with_config(limits);
        let mut connection = connecting.await?;
        if let Self::Sentinel(_) = self {
            let role: Role = redis::cmd("ROLE").query_async(&mut connection).await?;
            if !matches!(role, Role::Primary { .. }) {
                let why = "the server that the sentinels name is not a master";
                return Err(RedisError::from((ErrorKind::Io, why)));
            }
        }
        Ok(connection)
    }
}

impl Sentinels {
    /// Parses `[user:password@]host:port,…/name[/database]`.
    fn parse(scheme: &str, rest: &str) -> RedisResult<Self> {
        let invalid = || {
            let why = "expected redis+sentinel://host:port,…/master";
            RedisError::from((ErrorKind::InvalidClientConfig, why))
        };
        let (hosts, path) = split_path(rest);
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return Err(invalid());
        }
        let found = parse_hosts(scheme, hosts, SENTINEL_PORT, database)?;
        let first = found.first().ok_or_else(invalid)?;
        Ok(Self {
            settings: first.redis_settings().clone(),
            is_tls: scheme == "rediss",
            addresses: found.iter().map(|info| info.addr().clone()).collect(),
            name: name.to_owned(),
        })
    }

    async fn master(&self) -> RedisResult<Client> {
        let lookups = self.addresses.iter().cloned();
        let lookups = lookups.map(|sentinel| self.master_of(sentinel).boxed());
        // The driver asks all at the same time too, but waits for the answers in the order of the URL.
        let found = select_ok(lookups).await;
        found.map(|(master, _)| master)
    }

    /// The master that one of the sentinels names.
    async fn master_of(&self, sentinel: ConnectionAddr) -> RedisResult<Client> {
        let mut builder =
            SentinelClientBuilder::new([sentinel], &self.name, SentinelServerType::Master)?
                .set_client_to_redis_db(self.settings.db());
        if let Some(user) = self.settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = self.settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if self.is_tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        builder.build()?.async_get_client().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_sentinels_is_parsed() {
        let url = "redis+sentinel://shop:p%40ss@a:1,b,[::1]:3/stock/2";
        let Ok(Address::Sentinel(parsed)) = Address::parse(url) else {
            panic!("it is valid");
        };
        let tcp = |host: &str, port| ConnectionAddr::Tcp(host.to_owned(), port);
        assert_eq!(
            parsed.addresses,
            [tcp("a", 1), tcp("b", 26379), tcp("::1", 3)]
        );
        let settings = (parsed.settings.username(), parsed.settings.password());
        assert_eq!(settings, (Some("shop"), Some("p@ss")));
        assert_eq!((&*parsed.name, parsed.settings.db()), ("stock", 2));
        assert!(!parsed.is_tls);
        assert!(!format!("{parsed:?}").contains("p@ss"));
    }

    #[test]
    fn invalid_url_of_several_servers_is_refused() {
        for url in [
            "redis+sentinel://a:1",
            "redis+sentinel://a:1/",
            "redis+sentinel:///stock",
            "redis+sentinel://a:1,/stock",
            "redis+sentinel://a:port/stock",
            "redis+sentinel://a:1/stock/database",
            "http+sentinel://a:1/stock",
            "redis+cluster://",
            "redis+cluster://a:1,",
            "redis+cluster://a:port",
            "redis+cluster://a:1/2",
            "http+cluster://a:1",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }
}
