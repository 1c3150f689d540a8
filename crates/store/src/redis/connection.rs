//! Connections to one server: one that scripts and single commands share, and those for `WATCH`. The shared
//! connection is opened on first use and after a loss.
//!
//! The pool is deadpool. The manager of deadpool-redis sends `UNWATCH` and `PING` before each use,
//! two commands that a connection which is closed after every error does not need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation};
use tokio::time::Instant;

use super::address::Address;
use super::binding::Binding;
use super::cluster::Node;
use super::errors::{Failed, connecting, is_connection_error, reading};
use super::on_demand::{self, OnDemand};
use crate::StoreError;
use crate::clock::ServerClock;
use stocklock_core::ports::Expiry;

/// Opens connections to one node.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) address: Address,
    pub(super) node: Node,
    /// How long to wait for a connection, and for a reply.
    pub(super) limit: Duration,
    /// Checks that a connection leads to the Redis of the ledger. `None` checks nothing.
    pub(super) binding: Option<Arc<Binding>>,
}

impl Connector {
    /// Opens a connection to the Redis of the ledger.
    pub(super) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        Ok(self.connect_bound().await?.0)
    }

    /// The same. Returns also the number of the binding that the connection belongs to, or 0.
    async fn connect_bound(&self) -> RedisResult<(MultiplexedConnection, u64)> {
        let mut connection = self.connect_unchecked().await?;
        let number = match &self.binding {
            Some(binding) => binding.admit(&mut connection, &self.node).await?,
            None => 0,
        };
        Ok((connection, number))
    }

    /// Whether a connection of this binding leads to the Redis that is used now.
    fn is_current(&self, number: u64) -> bool {
        let binding = self.binding.as_ref();
        binding.is_none_or(|binding| binding.is_current(number))
    }

    /// The same to any Redis.
    pub(super) async fn connect_unchecked(&self) -> RedisResult<MultiplexedConnection> {
        self.address.connect(&self.node, self.limit).await
    }
}

/// A connection for `WATCH` and `WAIT`, with one user at a time.
///
/// `WATCH` applies to a connection. If two callers shared one, the first `EXEC` would end both
/// watches, and the second `EXEC` would succeed although the level had changed.
#[derive(Debug)]
pub(super) struct ExclusiveConnection {
    pub(super) connection: MultiplexedConnection,
    /// Whether the connection may still have a `WATCH` or an outstanding reply.
    pub(super) in_use: bool,
    /// The number of the binding that it belongs to.
    binding: u64,
}

impl Manager for Connector {
    type Type = ExclusiveConnection;
    type Error = RedisError;

    async fn create(&self) -> RedisResult<ExclusiveConnection> {
        let (connection, binding) = self.connect_bound().await?;
        Ok(ExclusiveConnection {
            connection,
            in_use: false,
            binding,
        })
    }

    /// Closes the connection of a caller that was cancelled, and one of an earlier binding, which may lead
    /// to another server. Sends nothing, to save a round trip.
    async fn recycle(
        &self,
        exclusive: &mut ExclusiveConnection,
        _: &Metrics,
    ) -> Result<(), RecycleError<RedisError>> {
        if exclusive.in_use {
            return Err(RecycleError::message("its last user was cancelled"));
        }
        if !self.is_current(exclusive.binding) {
            return Err(RecycleError::message("it is of an earlier binding"));
        }
        Ok(())
    }
}

/// The shared connection. Do not send blocking commands on it, and no commands that change the state
/// of the connection: `WATCH`, `SELECT`, or a `MULTI` that spans messages. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct SharedConnection {
    connector: Connector,
    open: Arc<OnDemand<MultiplexedConnection>>,
    clock: Arc<Mutex<Option<ServerClock>>>,
}

/// An attempt to connect.
pub(super) type Attempt = on_demand::Attempt<MultiplexedConnection>;

impl SharedConnection {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector,
            open: Arc::default(),
            clock: Arc::default(),
        }
    }

    /// How long a caller waits for a reply.
    pub(super) fn limit(&self) -> Duration {
        self.connector.limit
    }

    /// Sends commands that are safe to repeat.
    pub(super) async fn read_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, StoreError> {
        let (mut connection, attempt) = self.get().await.map_err(connecting)?;
        let answer = commands.query_async(&mut connection).await;
        self.drop_if_broken(answer, &attempt).map_err(reading)
    }

    /// Sends a command that is safe to repeat.
    pub(super) async fn read<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let (mut connection, attempt) = self.get().await.map_err(connecting)?;
        let answer = command.query_async(&mut connection).await;
        self.drop_if_broken(answer, &attempt).map_err(reading)
    }

    /// Runs a script. The driver loads it if the server does not know it.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Failed> {
        let (mut connection, attempt) = self.get().await.map_err(Failed::NotSent)?;
        let answer = script.invoke_async(&mut connection).await;
        self.drop_if_broken(answer, &attempt)
            .map_err(Failed::Unanswered)
    }

    /// The server's clock, in milliseconds since 1970.
    pub(super) async fn millis(&self) -> Result<i64, StoreError> {
        self.read(&redis::cmd("TIME")).await.map(millis)
    }

    /// When a script expires that is sent now, for a caller who is answered by `deadline`. Not later than
    /// this process may sell.
    pub(super) async fn expiry(&self, deadline: Instant) -> Result<Expiry, StoreError> {
        let known = self.clock().filter(ServerClock::is_recent);
        let clock = match known {
            Some(clock) => clock,
            None => ServerClock::shows(self.millis().await?),
        };
        *self.clock() = Some(clock);
        let binding = self.connector.binding.as_ref();
        let sells_until = binding.and_then(|binding| binding.sells_until());
        let deadline = sells_until.map_or(deadline, |until| until.min(deadline));
        Ok(clock.expiry(deadline, self.limit()))
    }

    /// Closes the connection. The next command opens a new one.
    pub(super) fn close(&self) {
        self.open.clear();
        *self.clock() = None;
    }

    /// Drops the connection if the reply is an error of the connection. A late error of an old
    /// connection does not drop a new one.
    pub(super) fn drop_if_broken<T>(
        &self,
        answer: RedisResult<T>,
        attempt: &Attempt,
    ) -> RedisResult<T> {
        if answer.as_ref().is_err_and(is_connection_error) && self.open.drop_attempt(attempt) {
            *self.clock() = None;
        }
        answer
    }

    /// The connection, which other callers use too, and the attempt that opened it.
    pub(super) async fn get(&self) -> RedisResult<(MultiplexedConnection, Attempt)> {
        let connect = || {
            let connector = self.connector.clone();
            async move { connector.connect().await }
        };
        self.open.get(self.limit(), connect).await
    }

    fn clock(&self) -> MutexGuard<'_, Option<ServerClock>> {
        // No code panics while it holds this mutex.
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to `TIME`, in milliseconds since 1970.
pub(super) fn millis((seconds, micros): (i64, i64)) -> i64 {
    seconds * 1000 + micros / 1000
}
