//! The connections to all nodes that have the stock.
//!
//! A node that does not have a slot now refuses the command, and has changed nothing. Then the node is looked
//! up again, and the command is repeated until the limit of a connection. While a slot moves, a script finds
//! all its keys on neither node, because some of them do not exist: it waits for the end of the move.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{Pool, QueueMode};
use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, Script, ScriptInvocation, Value,
    from_redis_value,
};
use tokio::time::{Instant, sleep};

use super::address::Address;
use super::cluster::{Layout, Node, Slot};
use super::connection::{Attempt, Connector, SharedConnection};
use super::errors::{Failed, connecting, has_moved, is_lost, reading};
use super::keys::{Keys, Shard};
use super::on_demand::OnDemand;
use crate::StoreError;

/// The pause before a command is repeated because a slot has moved, or moves.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the nodes are asked at most who has which slot.
const REFRESH_EVERY: Duration = Duration::from_millis(50);

/// Who has which slot, as a node has said. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Layouts {
    address: Address,
    limit: Duration,
    current: Arc<OnDemand<Arc<Layout>>>,
    /// All nodes of the last layout, and when it may be asked for again.
    last: Arc<Mutex<(Vec<Node>, Option<Instant>)>>,
}

impl Layouts {
    pub(super) fn new(address: Address, limit: Duration) -> Self {
        Self {
            address,
            limit,
            current: Arc::default(),
            last: Arc::default(),
        }
    }

    async fn get(&self) -> RedisResult<Arc<Layout>> {
        let ask = || {
            let this = self.clone();
            async move { this.ask().await.map(Arc::new) }
        };
        Ok(self.current.get(self.limit, ask).await?.0)
    }

    /// Asks the nodes now.
    async fn ask(&self) -> RedisResult<Layout> {
        let known = self.last().0.clone();
        let layout = self.address.layout(&known, self.limit).await?;
        *self.last() = (
            layout.nodes().to_vec(),
            Some(Instant::now() + REFRESH_EVERY),
        );
        Ok(layout)
    }

    /// Asks the nodes again when it is next needed, unless they were asked a moment ago.
    pub(super) fn refresh(&self) {
        let is_due = |next: Option<Instant>| next.is_none_or(|next| next <= Instant::now());
        let mut last = self.last();
        if is_due(last.1) {
            last.1 = Some(Instant::now() + REFRESH_EVERY);
            self.current.clear();
        }
    }

    fn last(&self) -> MutexGuard<'_, (Vec<Node>, Option<Instant>)> {
        // No code panics while it holds this mutex.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

    /// Sends something to the node that has the slot, and again if the slot has moved. It must have changed
    /// nothing if it fails so.
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
            let server = self.at(slot).await.map_err(connecting)?;
            match send(server).await {
                Err(error) if self.moved(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Whether the node has refused a command because it does not have the slot, or not all of it. After this
    /// and after lost connections, the nodes are looked up again.
    fn moved(&self, error: &StoreError) -> bool {
        if self.single.is_some() {
            return false;
        }
        let moved = has_moved(error);
        if moved || is_lost(error) {
            self.layouts.refresh();
        }
        moved
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
            let slots = commands.iter().map(|(slot, _)| *slot);
            let servers = self.connections(slots).await?;
            match servers.query_each(script, commands).await {
                Err(error) if self.moved(&error) && Instant::now() + PAUSE < until => {
                    sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// The same for all shards. `commands` adds the commands for each.
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
        let open = open.map_err(connecting).inspect_err(|error| {
            self.moved(error);
        })?;
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

/// A connection to a node.
#[derive(Debug)]
struct Open {
    node: Node,
    connection: MultiplexedConnection,
    /// If others share it: it is closed after an error.
    shared: Option<(SharedConnection, Attempt)>,
}

impl Open {
    async fn query<T: FromRedisValue>(&self, commands: &Pipeline) -> RedisResult<T> {
        let mut connection = self.connection.clone();
        let answers = commands.query_async(&mut connection).await;
        match &self.shared {
            Some((shared, attempt)) => shared.drop_if_broken(answers, attempt),
            None => answers,
        }
    }
}

/// One connection to each node that has some slots.
#[derive(Debug)]
pub(super) struct Connections {
    layout: Arc<Layout>,
    open: Vec<Open>,
}

impl Connections {
    /// Opens connections that nothing has checked, to the nodes that have the slots now.
    pub(super) async fn open(
        connector: &Connector,
        layouts: &Layouts,
        slots: impl IntoIterator<Item = Slot>,
    ) -> Result<Self, StoreError> {
        let layout = Arc::new(layouts.ask().await.map_err(connecting)?);
        let nodes = layout.nodes_of(slots).map_err(connecting)?;
        let open = async |node: Node| {
            let connection = connector.address.connect(&node, connector.limit).await?;
            Ok(Open {
                node,
                connection,
                shared: None,
            })
        };
        let open: RedisResult<_> = try_join_all(nodes.into_iter().map(open)).await;
        Ok(Self {
            layout,
            open: open.map_err(connecting)?,
        })
    }

    /// The connection to a single server.
    pub(super) fn single(connection: MultiplexedConnection) -> Self {
        Self {
            layout: Arc::new(Layout::single()),
            open: vec![Open {
                node: Node::Single,
                connection,
                shared: None,
            }],
        }
    }

    /// All connections, each with the node that it leads to.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Node, MultiplexedConnection)> {
        let all = self.open.iter();
        all.map(|open| (&open.node, open.connection.clone()))
    }

    /// For each connection, a slot that its node has.
    pub(super) fn one_slot_each(&self) -> impl Iterator<Item = Slot> {
        let all = self.open.iter();
        all.filter_map(|open| self.layout.slot_of(&open.node))
    }

    /// The connection to the node that has the slot.
    pub(super) fn at(&self, slot: Slot) -> Result<MultiplexedConnection, StoreError> {
        let node = self.layout.node_of(slot).map_err(connecting)?;
        let found = self.open.iter().find(|open| open.node == *node);
        let found = found.expect("there is a connection for each slot that was asked for");
        Ok(found.connection.clone())
    }

    /// Sends each node the same commands, which are safe to repeat. Returns their answers.
    pub(super) async fn query_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<Vec<T>, StoreError> {
        let query = async |open: &Open| open.query(commands).await;
        try_join_all(self.open.iter().map(query))
            .await
            .map_err(reading)
    }

    /// Sends commands that are safe to repeat: one message to each node. Returns the answers for each slot,
    /// in order. `script` is loaded before.
    pub(super) async fn query_each<T: FromRedisValue>(
        &self,
        script: Option<&Script>,
        commands: &[(Slot, Pipeline)],
    ) -> Result<Vec<T>, StoreError> {
        let mut of_node = vec![Vec::new(); self.open.len()];
        for (index, (slot, _)) in commands.iter().enumerate() {
            let node = self.layout.node_of(*slot).map_err(connecting)?;
            let at = self.open.iter().position(|open| open.node == *node);
            of_node[at.expect("there is a connection for each slot that was asked for")]
                .push(index);
        }
        let query = async |(open, indexes): (&Open, &Vec<usize>)| {
            let mut message = redis::pipe();
            if let Some(script) = script {
                message.load_script(script).ignore();
            }
            for index in indexes {
                for command in commands[*index].1.cmd_iter() {
                    message.add_command(command.clone());
                }
            }
            open.query::<Vec<Value>>(&message).await
        };
        let queries = self.open.iter().zip(&of_node).map(query);
        let answers: RedisResult<Vec<Vec<Value>>> = try_join_all(queries).await;
        let mut parsed: Vec<Option<T>> = commands.iter().map(|_| None).collect();
        for (indexes, answers) in of_node.iter().zip(answers.map_err(reading)?) {
            let mut answers = answers.into_iter();
            for index in indexes {
                let some = answers.by_ref().take(commands[*index].1.len()).collect();
                let value: Result<T, RedisError> =
                    from_redis_value(Value::Array(some)).map_err(RedisError::from);
                parsed[*index] = Some(value.map_err(reading)?);
            }
        }
        Ok(parsed.into_iter().flatten().collect())
    }
}
