//! The address of the counters' Redis: one server, the master that Sentinel names, or a cluster.

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisResult, TlsMode};
use secrecy::{ExposeSecret, SecretString};

/// The port of a sentinel whose address has none.
const SENTINEL_PORT: &str = "26379";

/// The port of a node of a cluster whose address has none.
const CLUSTER_PORT: &str = "6379";

/// The server, or how to find it.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Server(Client),
    Sentinel(Sentinels),
    Cluster(Vec<ConnectionInfo>),
}

/// The sentinels, and the master that they know.
#[derive(Debug, Clone)]
pub(super) struct Sentinels {
    /// User, password and database are those of the master.
    servers: Vec<ConnectionInfo>,
    name: String,
    is_tls: bool,
}

impl Address {
    /// `None` if the URL is not valid: the driver's error may contain the password.
    pub(super) fn parse(url: &SecretString) -> Option<Self> {
        let url = url.expose_secret();
        if let Some((scheme, rest)) = url.split_once("+sentinel://") {
            return Sentinels::parse(scheme, rest).map(Self::Sentinel);
        }
        if let Some((scheme, rest)) = url.split_once("+cluster://") {
            return servers(scheme, rest, CLUSTER_PORT, "").map(Self::Cluster);
        }
        Client::open(url).ok().map(Self::Server)
    }
}

impl Sentinels {
    /// Parses `[user:password@]host:port,…/name[/database]`.
    fn parse(scheme: &str, rest: &str) -> Option<Self> {
        // A password may contain a slash.
        let hosts = rest.rfind('@').map_or(0, |at| at + 1);
        let slash = hosts + rest[hosts..].find('/')?;
        let (sentinels, path) = (&rest[..slash], &rest[slash + 1..]);
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        (!name.is_empty()).then_some(())?;
        Some(Self {
            servers: servers(scheme, sentinels, SENTINEL_PORT, database)?,
            name: name.to_owned(),
            is_tls: scheme == "rediss",
        })
    }

    pub(super) fn client(&self) -> RedisResult<SentinelClient> {
        let addresses = self.servers.iter().map(|server| server.addr().clone());
        let settings = self.servers[0].redis_settings();
        let mut builder =
            SentinelClientBuilder::new(addresses, &self.name, SentinelServerType::Master)?
                .set_client_to_redis_db(settings.db());
        if let Some(user) = settings.username() {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = settings.password() {
            builder = builder.set_client_to_redis_password(password);
        }
        if self.is_tls {
            builder = builder.set_client_to_redis_tls_mode(TlsMode::Secure);
        }
        builder.build()
    }
}

/// Parses `[user:password@]host[:port],…`. `None` if it is not valid.
fn servers(
    scheme: &str,
    text: &str,
    default_port: &str,
    database: &str,
) -> Option<Vec<ConnectionInfo>> {
    let (user, hosts) = match text.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), text),
    };
    let parse = |host: &str| {
        let port = host.rsplit_once(':').map(|(_, port)| port);
        let has_port = port.is_some_and(|port| !port.ends_with(']'));
        let port = if has_port { "" } else { default_port };
        let colon = if has_port { "" } else { ":" };
        let url = format!("{scheme}://{user}{host}{colon}{port}/{database}");
        url.into_connection_info().ok()
    };
    hosts.split(',').map(parse).collect()
}

#[cfg(test)]
mod tests {
    use redis::ConnectionAddr;

    use super::*;

    fn parse(url: &str) -> Option<Address> {
        Address::parse(&url.into())
    }

    fn tcp(host: &str, port: u16) -> ConnectionAddr {
        ConnectionAddr::Tcp(host.to_owned(), port)
    }

    #[test]
    fn url_of_sentinels_is_parsed() {
        let url = "redis+sentinel://shop:p%40ss@a:1,b,[::1]:3/stock/2";
        let Some(Address::Sentinel(parsed)) = parse(url) else {
            panic!("it is valid");
        };
        let addresses: Vec<_> = parsed.servers.iter().map(ConnectionInfo::addr).collect();
        assert_eq!(addresses, [&tcp("a", 1), &tcp("b", 26379), &tcp("::1", 3)]);
        let settings = parsed.servers[0].redis_settings();
        assert_eq!(settings.username(), Some("shop"));
        assert_eq!(settings.password(), Some("p@ss"));
        assert_eq!((&*parsed.name, settings.db()), ("stock", 2));
        assert!(!parsed.is_tls);
        assert!(!format!("{parsed:?}").contains("p@ss"));
    }

    #[test]
    fn url_of_a_cluster_is_parsed() {
        let url = "redis+cluster://shop:p%40ss@a:1,b,[::1]:3";
        let Some(Address::Cluster(nodes)) = parse(url) else {
            panic!("it is valid");
        };
        let addresses: Vec<_> = nodes.iter().map(ConnectionInfo::addr).collect();
        assert_eq!(addresses, [&tcp("a", 1), &tcp("b", 6379), &tcp("::1", 3)]);
        assert_eq!(nodes[0].redis_settings().password(), Some("p@ss"));
    }

    #[test]
    fn invalid_url_is_refused() {
        for url in [
            "redis+cluster://",
            "redis+cluster://a:1,,b:2",
            "redis+cluster://a:port",
            "http+cluster://a:1",
            "redis+sentinel://a:1",
            "redis+sentinel://a:1/",
            "redis+sentinel:///stock",
            "redis+sentinel://a:1,/stock",
            "redis+sentinel://a:port/stock",
            "redis+sentinel://a:1/stock/database",
            "http+sentinel://a:1/stock",
        ] {
            assert!(parse(url).is_none(), "{url}");
        }
    }
}
