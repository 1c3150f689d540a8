//! One connection to each node, and messages that have commands for many slots.

use std::sync::Arc;

use futures_util::future::try_join_all;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, RedisResult, Script, Value, from_redis_value};

use super::Layouts;
use crate::StoreError;
use crate::redis::cluster::{Layout, Node, Slot};
use crate::redis::connection::{Attempt, Connector, SharedConnection};
use crate::redis::errors::{connecting, reading};

/// A connection to a node.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) node: Node,
    pub(super) connection: MultiplexedConnection,
    /// If others share it: it is closed after an error.
    pub(super) shared: Option<(SharedConnection, Attempt)>,
}

impl Open {
    async fn query<T: FromRedisValue>(&self, commands: &Pipeline) -> RedisResult<T> {
        let mut connection = self.connection.clone();
        self.checked(commands.query_async(&mut connection).await)
    }

    /// Returns the answer. After an error of the connection, drops it if it is shared.
    fn checked<T>(&self, answer: RedisResult<T>) -> RedisResult<T> {
        match &self.shared {
            Some((shared, attempt)) => shared.drop_if_broken(answer, attempt),
            None => answer,
        }
    }
}

/// One connection to each node that has some slots.
#[derive(Debug)]
pub(in crate::redis) struct Connections {
    pub(super) layout: Arc<Layout>,
    pub(super) open: Vec<Open>,
}

impl Connections {
    /// Opens connections that nothing has checked, to the nodes that have the slots now.
    pub(in crate::redis) async fn open(
        connector: &Connector,
        layouts: &Layouts,
        slots: impl IntoIterator<Item = Slot>,
    ) -> Result<Self, StoreError> {
        let layout = layouts.ask_now().await.map_err(connecting)?;
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
    pub(in crate::redis) fn single(connection: MultiplexedConnection) -> Self {
        Self {
            layout: Arc::new(Layout::single()),
            open: vec![Open {
                node: Node::Single,
                connection,
                shared: None,
            }],
        }
    }

    pub(in crate::redis) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// All connections, each with the node that it leads to.
    pub(in crate::redis) fn all(&self) -> impl Iterator<Item = (&Node, MultiplexedConnection)> {
        let all = self.open.iter();
        all.map(|open| (&open.node, open.connection.clone()))
    }

    /// For each connection, a slot that its node has.
    pub(in crate::redis) fn one_slot_each(&self) -> impl Iterator<Item = Slot> {
        let all = self.open.iter();
        all.filter_map(|open| self.layout.slot_of(&open.node))
    }

    /// The connection to the node that has the slot.
    pub(in crate::redis) fn at(&self, slot: Slot) -> Result<MultiplexedConnection, StoreError> {
        let node = self.layout.node_of(slot).map_err(connecting)?;
        let found = self.open.iter().find(|open| open.node == *node);
        let found = found.expect("there is a connection for each slot that was asked for");
        Ok(found.connection.clone())
    }

    /// Sends each node the same commands, which are safe to repeat. Returns their answers.
    pub(in crate::redis) async fn query_all<T: FromRedisValue>(
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
    pub(in crate::redis) async fn query_each<T: FromRedisValue>(
        &self,
        script: Option<&Script>,
        commands: &[(Slot, Pipeline)],
    ) -> Result<Vec<T>, StoreError> {
        let answers = self.try_query_each(script, commands).await?;
        answers.into_iter().collect()
    }

    /// The same. A server's error is only that of the slot whose commands it has refused.
    pub(in crate::redis) async fn try_query_each<T: FromRedisValue>(
        &self,
        script: Option<&Script>,
        commands: &[(Slot, Pipeline)],
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let mut of_node = vec![Vec::new(); self.open.len()];
        for (index, (slot, _)) in commands.iter().enumerate() {
            let node = self.layout.node_of(*slot).map_err(connecting)?;
            let at = self.open.iter().position(|open| open.node == *node);
            of_node[at.expect("there is a connection for each slot that was asked for")]
                .push(index);
        }
        let query = async |(open, indexes): (&Open, &Vec<usize>)| {
            let mut message = redis::pipe();
            message.ignore_errors();
            if let Some(script) = script {
                message.load_script(script);
            }
            for index in indexes {
                for command in commands[*index].1.cmd_iter() {
                    message.add_command(command.clone());
                }
            }
            if message.is_empty() {
                return Ok(Vec::new());
            }
            let mut answers: Vec<Value> = open.query(&message).await?;
            if script.is_some() {
                answers.remove(0).extract_error()?;
            }
            Ok(answers)
        };
        let queries = self.open.iter().zip(&of_node).map(query);
        let answers: RedisResult<Vec<Vec<Value>>> = try_join_all(queries).await;
        let mut parsed: Vec<Option<Result<T, StoreError>>> =
            commands.iter().map(|_| None).collect();
        let answers = answers.map_err(reading)?;
        for ((open, indexes), answers) in self.open.iter().zip(&of_node).zip(answers) {
            let mut answers = answers.into_iter();
            for index in indexes {
                let some = answers.by_ref().take(commands[*index].1.len()).collect();
                let value = Value::Array(some).extract_error();
                let value = value.and_then(|value| Ok(from_redis_value(value)?));
                parsed[*index] = Some(open.checked(value).map_err(reading));
            }
        }
        Ok(parsed.into_iter().flatten().collect())
    }
}
