//! The nodes of a cluster, as far as this process knows them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::hosts::{parse_hosts, split_path};
use super::Range;
use futures_util::FutureExt;
use futures_util::future::select_ok;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, Value,
};
use tokio::time::timeout;

use crate::shared::lock::lock;

/// The port of a node whose address has none.
const PORT: &str = "6379";

/// How long the node that `MOVED` has named may take to answer. Its map is newer, but it may hang, and the
/// other nodes must be asked before the caller gives up.
const INFORMED_WITHIN: Duration = Duration::from_millis(200);

/// The error if a node [does not serve clients](serves_clients).
pub(super) const SERVES_NO_CLIENTS: &str = "CLUSTERDOWN a node of the cluster serves no clients";

/// Whether a node serves clients, by its answer to `CLUSTER INFO`.
pub(super) fn serves_clients(info: &str) -> bool {
    info.contains("cluster_state:ok")
}

/// The nodes of the URL, and those that they have named. Clones share what they learn.
#[derive(Debug, Clone)]
pub(in super::super) struct Nodes {
    /// How to connect to a node, apart from its address.
    settings: ConnectionInfo,
    /// The addresses of the URL, `host:port`.
    seeds: Arc<[String]>,
    /// The addresses of the latest table.
    learned: Arc<Mutex<BTreeSet<String>>>,
}

impl Nodes {
    /// Parses `[user:password@]host[:port],…`.
    pub(in super::super) fn parse(scheme: &str, rest: &str) -> RedisResult<Self> {
        let (hosts, database) = split_path(rest);
        let hosts = parse_hosts(scheme, hosts, PORT, database)?;
        let invalid = |why| RedisError::from((ErrorKind::InvalidClientConfig, why));
        let settings = hosts.first().cloned();
        let settings = settings.ok_or_else(|| invalid("expected redis+cluster://host:port,…"))?;
        if settings.redis_settings().db() != 0 {
            return Err(invalid("Redis Cluster has only the database 0"));
        }
        let seeds = hosts.iter().map(|info| info.addr().to_string());
        Ok(Self {
            seeds: seeds.collect(),
            settings,
            learned: Arc::default(),
        })
    }

    pub(in super::super) fn client(&self, address: &str) -> RedisResult<Client> {
        let parts = address.rsplit_once(':');
        let parts = parts.and_then(|(host, port)| Some((host, port.parse().ok()?)));
        let (host, port) = parts.ok_or_else(|| {
            let why = "a node of the cluster has no valid address";
            RedisError::from((ErrorKind::Io, why, address.to_owned()))
        })?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let address = match self.settings.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(self.settings.clone().set_addr(address))
    }

    /// A client of any node that serves clients. Messages reach all nodes.
    pub(in super::super) async fn any(&self) -> RedisResult<Client> {
        let (node, _) = self.first().await?;
        self.client(&node)
    }

    /// The masters of the slots, from a node that serves clients: from `informed`, or from the first one
    /// that answers.
    pub(super) async fn table(&self, informed: Option<String>) -> RedisResult<Vec<Range>> {
        let mut found = None;
        if let Some(node) = informed {
            let asked = timeout(INFORMED_WITHIN, self.ask(node)).await;
            found = asked.ok().and_then(Result::ok);
        }
        let (_, table) = match found {
            Some(found) => found,
            None => self.first().await?,
        };
        *lock(&self.learned) = table.nodes;
        Ok(table.masters)
    }

    /// Asks all nodes at the same time, so that a dead one costs no time.
    async fn first(&self) -> RedisResult<(String, Table)> {
        let mut known = lock(&self.learned).clone();
        known.extend(self.seeds.iter().cloned());
        let asked = known.into_iter();
        let asked = asked.map(|node| self.ask(node).boxed());
        select_ok(asked).await.map(|(found, _)| found)
    }

    /// Asks a node. The caller limits the time.
    async fn ask(&self, node: String) -> RedisResult<(String, Table)> {
        let limits = AsyncConnectionConfig::new();
        let limits = limits
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let client = self.client(&node)?;
        let connecting = client.get_multiplexed_async_connection_with_config(&limits);
        let mut questions = redis::pipe();
        questions.cmd("CLUSTER").arg("INFO");
        questions.cmd("CLUSTER").arg("SLOTS");
        let answers = questions.query_async(&mut connecting.await?).await?;
        let (info, slots): (String, Vec<Value>) = answers;
        let failed = |why| RedisError::from((ErrorKind::Io, why, node.clone()));
        if !serves_clients(&info) {
            return Err(failed(SERVES_NO_CLIENTS));
        }
        let host = node.rsplit_once(':').map_or(&*node, |(host, _)| host);
        let mut table = Table::default();
        for slots in &slots {
            let read = table.read(slots, host);
            read.ok_or_else(|| failed("CLUSTER SLOTS has an unexpected answer"))?;
        }
        Ok((node, table))
    }
}

#[derive(Debug, Default)]
struct Table {
    masters: Vec<Range>,
    /// The addresses of masters and replicas.
    nodes: BTreeSet<String>,
}

impl Table {
    /// Reads `first slot, last slot, master, replicas…`, as a node of this host has answered.
    fn read(&mut self, answer: &Value, host: &str) -> Option<()> {
        let Value::Array(parts) = answer else {
            return None;
        };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else {
            return None;
        };
        let mut master = None;
        for (index, node) in nodes.iter().enumerate() {
            let Value::Array(node) = node else {
                return None;
            };
            let [name, Value::Int(port), ..] = &node[..] else {
                return None;
            };
            let name: Option<String> = redis::from_redis_value_ref(name).ok()?;
            // The node that was asked may have none.
            let name = name.filter(|name| !name.is_empty());
            let name = name.as_deref().unwrap_or(host);
            // The node does not know the name of another node yet.
            if name == "?" {
                continue;
            }
            let address = format!("{name}:{port}");
            if index == 0 {
                master = Some(address.clone());
            }
            self.nodes.insert(address);
        }
        self.masters.extend(master.and_then(|master| {
            Some(Range {
                first: (*first).try_into().ok()?,
                last: (*last).try_into().ok()?,
                master,
            })
        }));
        Some(())
    }
}
