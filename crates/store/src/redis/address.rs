//! The address of a Redis: one server, or the master that Redis Sentinel names.
//!
//! Guarantee: a connection that was opened with the help of Sentinel leads to a server that was the master
//! after the connection was open. All sentinels are asked again for each connection, and the first one that
//! names a master decides: a failover needs no restart, and a sentinel that does not answer costs no time.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, Role, TlsMode,
};
use tokio::time::timeout;

/// The port of a sentinel whose address has none.
const SENTINEL_PORT: &str = "26379";

/// The server, or how to find it.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Server(Client),
    Sentinel(Sentinels),
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
    /// Parses a URL. `None` if it is not valid.
    pub(super) fn parse(url: &str) -> Option<Self> {
        // The driver's error text may contain the password.
        match url.split_once("+sentinel://") {
            Some((scheme, rest)) => Sentinels::parse(scheme, rest).map(Self::Sentinel),
            None => Client::open(url).ok().map(Self::Server),
        }
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Server(client) => client.get_connection_info().redis_settings().db(),
            Self::Sentinel(sentinels) => sentinels.settings.db(),
        }
    }

    /// Opens a connection.
    pub(super) async fn connect(&self, limit: Duration) -> RedisResult<MultiplexedConnection> {
        // Set both limits, because the driver's default response timeout is 500 ms.
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(limit))
            .set_response_timeout(Some(limit));
        match self {
            Self::Server(client) => {
                let connecting = client.get_multiplexed_async_connection_with_config(&limits);
                connecting.await
            }
            Self::Sentinel(sentinels) => {
                let connected = timeout(limit, sentinels.connect(&limits)).await;
                connected.unwrap_or_else(|_| {
                    let why = "no sentinel has named a master in time";
                    Err(RedisError::from((ErrorKind::Io, why)))
                })
            }
        }
    }
}

impl Sentinels {
    /// Parses `[user:password@]host:port,…/name[/database]`.
    fn parse(scheme: &str, rest: &str) -> Option<Self> {
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/')?;
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return None;
        }
        let parse = |host: &str| {
            let has_port = host
                .rsplit_once(':')
                .is_some_and(|(_, port)| !port.ends_with(']'));
            let port = if has_port { "" } else { SENTINEL_PORT };
            let colon = if has_port { "" } else { ":" };
            let url = format!("{scheme}://{user}{host}{colon}{port}/{database}");
            url.into_connection_info().ok()
        };
        let found: Vec<_> = hosts.split(',').map(parse).collect::<Option<_>>()?;
        let first = found.first()?;
        Some(Self {
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

    async fn connect(&self, limits: &AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let master = self.master().await?;
        let connecting = master.get_multiplexed_async_connection_with_config(limits);
        let mut connection = connecting.await?;
        let role: Role = redis::cmd("ROLE").query_async(&mut connection).await?;
        if !matches!(role, Role::Primary { .. }) {
            let why = "the server that the sentinels name is not a master";
            return Err(RedisError::from((ErrorKind::Io, why)));
        }
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_sentinels_is_parsed() {
        let url = "redis+sentinel://shop:p%40ss@a:1,b,[::1]:3/stock/2";
        let Some(Address::Sentinel(parsed)) = Address::parse(url) else {
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
    fn invalid_url_of_sentinels_is_refused() {
        for url in [
            "redis+sentinel://a:1",
            "redis+sentinel://a:1/",
            "redis+sentinel:///stock",
            "redis+sentinel://a:1,/stock",
            "redis+sentinel://a:port/stock",
            "redis+sentinel://a:1/stock/database",
            "http+sentinel://a:1/stock",
        ] {
            assert!(Address::parse(url).is_none(), "{url}");
        }
    }
}
