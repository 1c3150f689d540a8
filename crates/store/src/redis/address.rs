//! The address of a Redis: one server, the master that Redis Sentinel names, or the nodes of a cluster.
//!
//! Guarantee: a connection that was opened with the help of Sentinel leads to a server that was the master
//! after the connection was open. All sentinels are asked again for each connection, and the first one that
//! names a master decides: a failover needs no restart, and a sentinel that does not answer costs no time.
//! In the same way, all nodes of a cluster are asked. The first one that says `cluster_state:ok`, and whose epoch
//! is not lower than that of an earlier answer, decides.

use std::time::Duration;

use futures_util::future::select_ok;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, Role, TlsMode, Value,
};
use tokio::time::{Instant, timeout, timeout_at};

use super::cluster::{Layout, Node};

/// The port of a sentinel whose address has none.
const SENTINEL_PORT: &str = "26379";

/// The port of a node of a cluster whose address has none.
const CLUSTER_PORT: &str = "6379";

/// The server, or how to find it.
#[derive(Debug, Clone)]
pub(super) enum Address {
    Server(Client),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// The nodes of a cluster that are asked for the others. At least one.
#[derive(Debug, Clone)]
pub(super) struct Cluster(Vec<ConnectionInfo>);

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
        if let Some((scheme, rest)) = url.split_once("+sentinel://") {
            return Sentinels::parse(scheme, rest).map(Self::Sentinel);
        }
        match url.split_once("+cluster://") {
            Some((scheme, rest)) => servers(scheme, rest, CLUSTER_PORT, "")
                .map(Cluster)
                .map(Self::Cluster),
            None => Client::open(url).ok().map(Self::Server),
        }
    }

    /// The number of the database.
    pub(super) fn database(&self) -> i64 {
        match self {
            Self::Server(client) => client.get_connection_info().redis_settings().db(),
            Self::Sentinel(sentinels) => sentinels.settings.db(),
            // A cluster has no other one.
            Self::Cluster(_) => 0,
        }
    }

    /// Asks which node has which slot: those of the URL, and those that are `known`. An answer of an earlier
    /// `epoch` is outdated.
    pub(super) async fn layout(
        &self,
        known: &[Node],
        epoch: u64,
        limit: Duration,
    ) -> RedisResult<Layout> {
        match self {
            Self::Cluster(cluster) => cluster.layout(known, epoch, limit).await,
            _ => Ok(Layout::single()),
        }
    }

    /// Opens a connection to a node.
    pub(super) async fn connect(
        &self,
        node: &Node,
        limit: Duration,
    ) -> RedisResult<MultiplexedConnection> {
        let limits = limits(limit);
        match self {
            Self::Cluster(cluster) => connect(cluster.at(node), &limits).await,
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

/// Sets both limits, because the driver's default response timeout is 500 ms.
fn limits(limit: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(limit))
}

async fn connect(
    server: ConnectionInfo,
    limits: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let client = Client::open(server)?;
    client
        .get_multiplexed_async_connection_with_config(limits)
        .await
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
        let has_port = host
            .rsplit_once(':')
            .is_some_and(|(_, port)| !port.ends_with(']'));
        let port = if has_port { "" } else { default_port };
        let colon = if has_port { "" } else { ":" };
        let url = format!("{scheme}://{user}{host}{colon}{port}/{database}");
        url.into_connection_info().ok()
    };
    hosts.split(',').map(parse).collect()
}

impl Cluster {
    /// How to connect to this node: like to those of the URL.
    fn at(&self, node: &Node) -> ConnectionInfo {
        let like = self.0[0].clone();
        let Node::Of { host, port } = node.clone() else {
            return like;
        };
        let address = match like.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        like.set_addr(address)
    }

    async fn layout(&self, known: &[Node], epoch: u64, limit: Duration) -> RedisResult<Layout> {
        let (until, limits) = (Instant::now() + limit, limits(limit));
        let mut asked = self.0.clone();
        for known in known.iter().map(|node| self.at(node)) {
            if asked.iter().all(|node| node.addr() != known.addr()) {
                asked.push(known);
            }
        }
        let answers = asked
            .into_iter()
            .map(|node| layout_of(node, epoch, &limits));
        let mut answers: FuturesUnordered<_> = answers.collect();
        // A node that answers knows more than one that does not.
        let mut refusal = None;
        loop {
            match timeout_at(until, answers.next()).await {
                Ok(Some(Ok(layout))) => return Ok(layout),
                Ok(Some(Err(error))) if error.kind() == ErrorKind::Io => {
                    refusal.get_or_insert(error);
                }
                Ok(Some(Err(error))) => refusal = Some(error),
                Ok(None) | Err(_) => break,
            }
        }
        Err(refusal.unwrap_or_else(|| {
            let why = "no node of the cluster has answered in time";
            RedisError::from((ErrorKind::Io, why))
        }))
    }
}

/// What this node of a cluster says.
async fn layout_of(
    node: ConnectionInfo,
    epoch: u64,
    limits: &AsyncConnectionConfig,
) -> RedisResult<Layout> {
    let address = node.addr().clone();
    let mut connection = connect(node, limits).await?;
    let mut commands = redis::pipe();
    commands
        .cmd("CLUSTER")
        .arg("INFO")
        .cmd("CLUSTER")
        .arg("SLOTS");
    let (info, slots): (String, Value) = commands.query_async(&mut connection).await?;
    let refuse = |why| {
        Err(RedisError::from((
            ErrorKind::Client,
            why,
            address.to_string(),
        )))
    };
    if !info.contains("cluster_state:ok") {
        return refuse("a node says that the cluster is down");
    }
    let host = match &address {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    let layout = Layout::parse(&info, slots, host)?;
    if layout.epoch() < epoch {
        return refuse("a node does not know the latest state of the cluster");
    }
    Ok(layout)
}

impl Sentinels {
    /// Parses `[user:password@]host:port,…/name[/database]`.
    fn parse(scheme: &str, rest: &str) -> Option<Self> {
        // A password may contain a slash.
        let hosts = rest.rfind('@').map_or(0, |at| at + 1);
        let slash = hosts + rest[hosts..].find('/')?;
        let (sentinels, path) = (&rest[..slash], &rest[slash + 1..]);
        let (name, database) = path.split_once('/').unwrap_or((path, ""));
        if name.is_empty() {
            return None;
        }
        let found = servers(scheme, sentinels, SENTINEL_PORT, database)?;
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
    fn url_of_a_cluster_is_parsed() {
        let url = "redis+cluster://shop:p%40ss@a:1,b,[::1]:3";
        let Some(Address::Cluster(cluster)) = Address::parse(url) else {
            panic!("it is valid");
        };
        let tcp = |host: &str, port| ConnectionAddr::Tcp(host.to_owned(), port);
        let addresses: Vec<_> = cluster.0.iter().map(ConnectionInfo::addr).collect();
        assert_eq!(addresses, [&tcp("a", 1), &tcp("b", 6379), &tcp("::1", 3)]);
        let other = cluster.at(&Node::Of {
            host: "c".to_owned(),
            port: 4,
        });
        assert_eq!(other.addr(), &tcp("c", 4));
        assert_eq!(other.redis_settings().password(), Some("p@ss"));
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
            assert!(Address::parse(url).is_none(), "{url}");
        }
    }
}
