//! The connections to all nodes that have the stock.
//!
//! A node that does not have a slot now refuses the command, and has changed nothing. Then the node is looked
//! up again, and the command is repeated for as long as the limit of a connection. While a slot moves, both
//! nodes refuse a script that names a key which does not exist, like a bucket of dedup entries that has expired.
//! So a script waits for the end of the move.

mod connections;
mod layouts;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) use connections::Connections;
use connections::Open;
use deadpool::Runtime;
use deadpool::managed::{Pool, QueueMode};
use futures_util::FutureExt;
use futures_util::future::{select_ok, try_join_all};
pub(super) use layouts::Layouts;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Script, ScriptInvocation};
use tokio::time::{Instant, sleep};

use super::address::Address;
use super::cluster::{Node, Slot};
use super::connection::{Connector, SharedConnection};
use super::errors::{Failed, connecting, is_lost, is_moved, is_redirected};
use super::keys::{Keys, Shard};
use crate::StoreError;

/// The pause before a command is repeated because a slot has moved, or moves.
const PAUSE: Duration = Duration::from_millis(10);

/// The connections to one node.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) node: Node,
    pub(super) shared: SharedConnection,
    /// For `WATCH` and `WAIT`.
    pub(super) exclusive: Pool<Connector>,
}

/// The connections to each node. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Nodes {
    /// How to connect to a node: this is the one of a single server.
    connector: Connector,
    layouts: Layouts,
    /// The maximum number of exclusive connections to each.
    exclusive: usize,
    servers: Arc<Mutex<HashMap<Node, Arc<Server>>>>,
    /// The only one, if there is no cluster.
    single: Option<Arc<Server>>,
}

impl Nodes {
    pub(super) fn new(connector: Connector, layouts: Layouts, exclusive: usize) -> Self {
        let mut this = Self {
            connector,
            layouts,
            exclusive,
            servers: Arc::default(),
            single: None,
        };
        let is_cluster = matches!(this.connector.address, Address::Cluster(_));
        this.single = (!is_cluster).then(|| this.server(&Node::Single));
        this
    }

    /// The same nodes with other connections.
    pub(super) fn apart(&self) -> Self {
        Self::new(self.connector.clone(), self.layouts.clone(), self.exclusive)
    }

    /// How long a caller waits for a reply.
    pub(super) fn limit(&self) -> Duration {
        self.connector.limit
    }

    /// Whether they belong to a Redis Cluster.
    pub(super) fn are_cluster(&self) -> bool {
        self.single.is_none()
    }

    /// Closes all connections. The next commands open new ones.
    pub(super) fn close(&self) {
        for server in self.servers().values() {
            server.exclusive.retain(|_, _| false);
            server.shared.close();
        }
    }

    /// Closes all connections, and lets no caller wait for one for `WATCH` or `WAIT`.
    pub(super) fn shut_down(&self) {
        for server in self.servers().values() {
            server.exclusive.close();
            server.shared.close();
        }
    }

    /// The connections to the node that has the slot.
    pub(super) async fn at(&self, slot: Slot) -> RedisResult<Arc<Server>> {
        match &self.single {
            Some(single) => Ok(Arc::clone(single)),
            None => Ok(self.server(self.layouts.get().await?.node_of(slot)?)),
        }
    }

    /// Sends something to the node that has the slot, and again if the slot has moved, for as long as the limit of
    /// a connection. It must have changed nothing if it fails so.
    pub(super) async fn on<T, F>(
        &self,
        slot: Slot,
        send: impl Fn(Arc<Server>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let until = Instant::now() + self.limit();
        loop {
            match self.once_on(slot, &send).await {
                Err(error) if self.is_redirected(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Sends something to the node that has the slot, once.
    pub(super) async fn once_on<T, F>(
        &self,
        slot: Slot,
        send: impl Fn(Arc<Server>) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let server = self.at(slot).await.map_err(connecting)?;
        send(server).await.inspect_err(|error| self.note(error))
    }

    /// After an error that says that another node has the slot, the nodes are asked again.
    fn note(&self, error: &StoreError) {
        if self.are_cluster() && (is_moved(error) || is_lost(error)) {
            self.layouts.refresh();
        }
    }

    /// Whether the node has refused a command because it does not have the slot, or not all of it.
    fn is_redirected(&self, error: &StoreError) -> bool {
        self.are_cluster() && is_redirected(error)
    }

    /// Sends `PING` to the nodes that have these slots. Fails if none answers.
    pub(super) async fn ping(
        &self,
        slots: impl IntoIterator<Item = Slot>,
    ) -> Result<(), StoreError> {
        let layout = self.layouts.get().await.map_err(connecting)?;
        let nodes = layout.nodes_of(slots).map_err(connecting)?;
        let ping = |node| {
            let server = self.server(node);
            async move { server.shared.read::<()>(&Cmd::ping()).await }.boxed()
        };
        let answered = select_ok(nodes.iter().map(ping)).await;
        answered.map(drop).inspect_err(|error| self.note(error))
    }

    /// Sends a command that is safe to repeat.
    pub(super) async fn read<T: FromRedisValue>(
        &self,
        slot: Slot,
        command: &Cmd,
    ) -> Result<T, StoreError> {
        let read = |server: Arc<Server>| async move { server.shared.read(command).await };
        self.on(slot, read).await
    }

    /// Sends commands that are safe to repeat.
    pub(super) async fn read_all<T: FromRedisValue>(
        &self,
        slot: Slot,
        commands: &Pipeline,
    ) -> Result<T, StoreError> {
        let read = |server: Arc<Server>| async move { server.shared.read_all(commands).await };
        self.on(slot, read).await
    }

    /// Runs a script that writes, and has no time of expiry.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        slot: Slot,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, StoreError> {
        let run = |server: Arc<Server>| async move {
            let answer = server.shared.run(script).await;
            answer.map_err(Failed::writing)
        };
        self.on(slot, run).await
    }

    /// Sends commands that are safe to repeat for many slots: one message to each node. Returns the answers
    /// for each, in order. `script` is loaded before.
    pub(super) async fn read_each<T: FromRedisValue>(
        &self,
        script: Option<&Script>,
        commands: &[(Slot, Pipeline)],
    ) -> Result<Vec<T>, StoreError> {
        let until = Instant::now() + self.limit();
        loop {
            let read = self.try_read_each(script, commands).await?;
            match read.into_iter().collect() {
                Err(error) if self.is_redirected(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await;
                }
                answers => return answers,
            }
        }
    }

    /// The same, once: a slot that moves makes only its own answer an error.
    pub(super) async fn try_read_each<T: FromRedisValue>(
        &self,
        script: Option<&Script>,
        commands: &[(Slot, Pipeline)],
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let connections = self
            .connections(commands.iter().map(|(slot, _)| *slot))
            .await?;
        let read = connections.try_query_each(script, commands).await;
        let read = read.inspect_err(|error| self.note(error))?;
        for error in read.iter().filter_map(|answer| answer.as_ref().err()) {
            self.note(error);
        }
        Ok(read)
    }

    /// The same as [`Self::read_each`] for all shards. `commands` adds the commands for each.
    pub(super) async fn read_shards<T: FromRedisValue>(
        &self,
        keys: &Keys,
        script: Option<&Script>,
        commands: impl Fn(Shard, &mut Pipeline),
    ) -> Result<Vec<T>, StoreError> {
        self.read_each(script, &of_shards(keys, commands)).await
    }

    /// The shared connections to the nodes that have these slots.
    pub(super) async fn connections(
        &self,
        slots: impl IntoIterator<Item = Slot>,
    ) -> Result<Connections, StoreError> {
        let layout = self.layouts.get().await.map_err(connecting)?;
        let nodes = layout.nodes_of(slots).map_err(connecting)?;
        // Nodes may leave the cluster.
        self.servers()
            .retain(|node, _| layout.nodes().contains(node));
        let open = async |node: Node| {
            let shared = self.server(&node).shared.clone();
            let (connection, attempt) = shared.get().await?;
            Ok(Open {
                node,
                connection,
                shared: Some((shared, attempt)),
            })
        };
        let open: RedisResult<_> = try_join_all(nodes.into_iter().map(open)).await;
        let open = open
            .map_err(connecting)
            .inspect_err(|error| self.note(error))?;
        Ok(Connections { layout, open })
    }

    fn server(&self, node: &Node) -> Arc<Server> {
        let mut servers = self.servers();
        if let Some(known) = servers.get(node) {
            return Arc::clone(known);
        }
        let connector = Connector {
            node: node.clone(),
            ..self.connector.clone()
        };
        let exclusive = Pool::builder(connector.clone())
            .max_size(self.exclusive)
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(self.limit()))
            .runtime(Runtime::Tokio1)
            .build()
            .expect("a pool with a runtime can have a time limit");
        let server = Arc::new(Server {
            node: node.clone(),
            shared: SharedConnection::new(connector),
            exclusive,
        });
        servers.insert(node.clone(), Arc::clone(&server));
        server
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<Node, Arc<Server>>> {
        // No code panics while it holds this mutex.
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commands for each shard.
pub(super) fn of_shards(keys: &Keys, add: impl Fn(Shard, &mut Pipeline)) -> Vec<(Slot, Pipeline)> {
    let of_shard = |shard| {
        let mut commands = redis::pipe();
        add(shard, &mut commands);
        (keys.slot(shard), commands)
    };
    Shard::all().map(of_shard).collect()
}
