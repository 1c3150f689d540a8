//! The masters of a Redis Cluster: which of them serves a key, and a connection to each.
//!
//! This is not the cluster connection of the driver. That one repeats a request after the connection was
//! lost, although the first request may still be executed. It also hides which node has answered. A lock must
//! know both. Here only a refused request is sent again, because no node has executed it: after `MOVED` to the
//! present master, after `ASK` to the node that receives the slot, and after `TRYAGAIN` until the slot has
//! moved. Everything else is the caller's decision, as with one server.
//!
//! A slot moves key by key. Until it has moved, the old node has only some of the keys of a script. The script
//! would begin, and fail at the first key that is gone. Each script with several keys therefore has one more
//! key, which never exists. Both nodes then refuse the script before it begins. A script that may run while
//! its slot moves says so ([`Script::while_moving`](super::scripts::Script::while_moving)).

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, select_ok};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, ServerErrorKind};
use tokio::time::{Instant, sleep, timeout};

use super::address::Address;
use super::connection::{Connection, backend_error, needs_new_connection};
use crate::shared::error::BackendError;
use crate::shared::link::Link;
use crate::shared::lock::lock;
use crate::shared::retry::Backoff;

mod nodes;
mod slots;

pub(super) use nodes::Nodes;
pub(super) use slots::slot;

/// The least time between a load of the map and the next one, if a node is lost or the load has failed.
/// Otherwise each request would ask all nodes for the map, over new connections.
const RELOAD_AFTER: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Cluster {
    nodes: Nodes,
    connect: Duration,
    response: Duration,
    /// The present map. It is forgotten when a request shows that it is old.
    map: Link<Arc<Map>>,
    /// Why the last load of the map failed, and when.
    failure: Arc<Mutex<Option<(Instant, BackendError)>>>,
    connections: Connections,
}

#[derive(Debug)]
struct Map {
    ranges: Vec<Range>,
    loaded: Instant,
}

#[derive(Debug)]
struct Range {
    first: u16,
    last: u16,
    master: String,
}

impl Map {
    fn master(&self, slot: u16) -> Option<&str> {
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|range| (range.first..=range.last).contains(&slot));
        range.map(|range| &*range.master)
    }

    fn masters(&self) -> HashSet<&str> {
        self.ranges.iter().map(|range| &*range.master).collect()
    }

    fn is_new(&self) -> bool {
        self.loaded.elapsed() < RELOAD_AFTER
    }
}

/// The connections to the masters, by their address.
type Connections = Arc<Mutex<HashMap<String, Arc<Connection>>>>;

impl Cluster {
    pub(super) fn new(nodes: Nodes, connect: Duration, response: Duration) -> Self {
        Self {
            nodes,
            connect,
            response,
            map: Link::default(),
            failure: Arc::default(),
            connections: Connections::default(),
        }
    }

    pub(super) async fn connected(&self, key: &str) -> Result<(), BackendError> {
        let map = self.map(None).await?;
        let Some(master) = map.master(slot(key)) else {
            return Err(self.unserved(&map).refused());
        };
        let connected = self.connection(master)?.connected().await;
        connected.inspect_err(|_| self.forget_unless_new(&map))
    }

    /// Fails if no master answers that the cluster serves clients.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        let map = self.map(None).await?;
        let mut info = redis::cmd("CLUSTER");
        info.arg("INFO");
        let ping = async |master| {
            let info = self.master::<String>(&map, master, &info).await?;
            let down = || BackendError::transient(nodes::SERVES_NO_CLIENTS);
            nodes::serves_clients(&info).then_some(()).ok_or_else(down)
        };
        let pings = map
            .masters()
            .into_iter()
            .map(|master| Box::pin(ping(master)));
        let pings: Vec<_> = pings.collect();
        if pings.is_empty() {
            return Err(self.unserved(&map));
        }
        select_ok(pings).await.map(drop)
    }

    /// Sends a command without keys to every master. Returns the address and the answer of each.
    pub(super) async fn each<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<Vec<(String, Result<T, BackendError>)>, BackendError> {
        let map = self.map(None).await?;
        let answers = map.masters().into_iter().map(async |master| {
            let answer = self.master(&map, master, command).await;
            (master.to_owned(), answer)
        });
        Ok(join_all(answers).await)
    }

    async fn master<T: FromRedisValue>(
        &self,
        map: &Arc<Map>,
        master: &str,
        command: &Cmd,
    ) -> Result<T, BackendError> {
        let answer = self.connection(master)?.query(command, false).await;
        let answer = answer.and_then(|answer| answer.map_err(backend_error));
        answer.inspect_err(|_| self.forget_unless_new(map))
    }

    pub(super) fn open(&self) {
        self.map.open();
    }

    /// Closes all connections until [`open`](Self::open).
    pub(super) fn close(&self) {
        drop(self.map.close());
        let connections = std::mem::take(&mut *lock(&self.connections));
        for connection in connections.into_values() {
            connection.close();
        }
    }

    /// Sends a command to the master of a key. The outer error [is a refusal](BackendError::is_refusal) if no
    /// node has executed it. Otherwise there was no answer in time. The inner result is the server's
    /// answer.
    pub(super) async fn query<T: FromRedisValue>(
        &self,
        key: &str,
        command: &Cmd,
    ) -> Result<RedisResult<T>, BackendError> {
        let limit = self.connect + self.response;
        let answer = timeout(limit, self.route(slot(key), command)).await;
        answer.unwrap_or_else(|_| {
            let cause = format!("the cluster did not answer within {limit:?}");
            Err(BackendError::transient(cause))
        })
    }

    async fn route<T: FromRedisValue>(
        &self,
        slot: u16,
        command: &Cmd,
    ) -> Result<RedisResult<T>, BackendError> {
        let until = Instant::now() + self.response;
        let mut pauses = Backoff::default();
        let (mut moved_to, mut asking) = (None::<String>, None::<String>);
        loop {
            let map = self.map(moved_to.take()).await;
            let map = map.map_err(BackendError::refused_for_now)?;
            let is_asking = asking.is_some();
            let Some(node) = asking
                .take()
                .or_else(|| map.master(slot).map(str::to_owned))
            else {
                return Err(self.unserved(&map).refused());
            };
            let connection = self.connection(&node);
            let connection = connection.map_err(BackendError::refused_for_now)?;
            let answer = connection.query(command, is_asking).await;
            let error = match answer {
                Ok(Ok(value)) => return Ok(Ok(value)),
                Ok(Err(error)) => error,
                Err(error) => {
                    self.forget_unless_new(&map);
                    return Err(error);
                }
            };
            let to = named(&error, &node);
            match error.kind() {
                // Another node is the master of the slot.
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    self.forget(&map);
                    moved_to = to;
                }
                // The key is at the node that receives the slot, or nowhere.
                ErrorKind::Server(ServerErrorKind::Ask) if to.is_some() => {
                    asking = to;
                    continue;
                }
                // The keys are at two nodes, or some of them nowhere.
                ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain) => {}
                // The same in a script. It has not written yet: see the head of this file.
                _ if error.detail().is_some_and(|text| text.contains(NOT_LOCAL)) => {}
                _ => {
                    if is_map_old(&error) {
                        self.forget_unless_new(&map);
                    }
                    return Ok(Err(error));
                }
            }
            let pause = pauses.next();
            if Instant::now() + pause >= until {
                return Ok(Err(error));
            }
            sleep(pause).await;
        }
    }

    /// The present map. It is loaded from the node that `MOVED` has named, which knows the move; the
    /// others may not know it yet.
    async fn map(&self, informed: Option<String>) -> Result<Arc<Map>, BackendError> {
        let load = || {
            let (nodes, connections) = (self.nodes.clone(), Arc::clone(&self.connections));
            let (failure, limit) = (Arc::clone(&self.failure), self.connect + self.response);
            async move {
                let last = lock(&failure).clone();
                if let Some((at, error)) = last
                    && at.elapsed() < RELOAD_AFTER
                    && informed.is_none()
                {
                    return Err(error);
                }
                let table = timeout(limit, nodes.table(informed)).await;
                let silence = "no node of the cluster answered in time";
                let table = table.map_err(|_| BackendError::transient(silence));
                let table = table.and_then(|table| table.map_err(backend_error));
                let ranges = table.inspect_err(|error| {
                    *lock(&failure) = Some((Instant::now(), error.clone()));
                })?;
                let map = Map {
                    ranges,
                    loaded: Instant::now(),
                };
                let masters = map.masters();
                lock(&connections).retain(|address, _| masters.contains(&**address));
                Ok(Arc::new(map))
            }
        };
        self.map.get(|_| true, load).await
    }

    fn forget(&self, map: &Arc<Map>) {
        self.map.forget(|current| Arc::ptr_eq(current, map));
    }

    fn forget_unless_new(&self, map: &Arc<Map>) {
        if !map.is_new() {
            self.forget(map);
        }
    }

    fn unserved(&self, map: &Arc<Map>) -> BackendError {
        self.forget_unless_new(map);
        BackendError::transient("CLUSTERDOWN no master serves the slot of this lock")
    }

    fn connection(&self, address: &str) -> Result<Arc<Connection>, BackendError> {
        let mut connections = lock(&self.connections);
        if let Some(connection) = connections.get(address) {
            return Ok(Arc::clone(connection));
        }
        let client = self.nodes.client(address).map_err(backend_error)?;
        let connection = Connection::new(Address::Server(client), self.connect, self.response);
        let connection = Arc::new(connection);
        connections.insert(address.to_owned(), Arc::clone(&connection));
        Ok(connection)
    }
}

/// The node that a refusal names.
fn named(error: &RedisError, node: &str) -> Option<String> {
    let (address, _) = error.redirect_node()?;
    // A node without a host is at the host that has answered.
    let port = address.strip_prefix(':');
    let port = port.filter(|port| port.parse::<u16>().is_ok());
    let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
    Some(port.map_or_else(|| address.to_owned(), |port| format!("{host}:{port}")))
}

/// Part of the error of a script that reads a key which its node does not have.
const NOT_LOCAL: &str = "attempted to access a non local key";

/// Returns true if the error may mean that another node is the master now.
fn is_map_old(error: &RedisError) -> bool {
    needs_new_connection(error) || error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown)
}
