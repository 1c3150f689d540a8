//! Connections to Redis: one that scripts and single commands share, and those for `WATCH`.
//!
//! The shared connection is opened on first use and after a loss. There is at most one attempt to
//! connect at a time, and all callers wait for its result. If the server does not respond, every
//! caller therefore waits for one limit, not for one after another.
//!
//! The pool is deadpool. The manager of deadpool-redis sends `UNWATCH` and `PING` before each use,
//! two commands that a connection which is closed after every error does not need.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, RedisResult, ScriptInvocation};
use tokio::time::{Instant, timeout};

use super::address::Address;
use super::binding::Binding;
use super::errors::{Failed, connecting, is_connection_error, reading};
use crate::StoreError;
use crate::clock::ServerClock;
use stocklock_core::ports::Expiry;

/// Opens connections.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    pub(super) address: Address,
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
            Some(binding) => binding.admit(&mut connection).await?,
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
        self.address.connect(self.limit).await
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
    current: Arc<Mutex<Current>>,
}

/// An attempt to connect, which all callers wait for. After it succeeded, it yields the connection.
type Attempt = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

#[derive(Debug, Default)]
struct Current {
    attempt: Option<Attempt>,
    /// The error of the previous attempt, if it failed.
    failure: Option<RedisError>,
    clock: Option<ServerClock>,
}

/// After a failed attempt, callers wait for the next one only this fraction of the limit. A server
/// that is back accepts at once. If it is still down, other requests need the callers' slots.
const WAIT_DIVISOR_AFTER_FAILURE: u32 = 8;

impl SharedConnection {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector,
            current: Arc::default(),
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
        let (seconds, micros): (i64, i64) = self.read(&redis::cmd("TIME")).await?;
        Ok(seconds * 1000 + micros / 1000)
    }

    /// When a script expires that is sent now, for a caller who is answered by `deadline`. Not later than
    /// this process may sell.
    pub(super) async fn expiry(&self, deadline: Instant) -> Result<Expiry, StoreError> {
        let known = self.current().clock.filter(ServerClock::is_recent);
        let clock = match known {
            Some(clock) => clock,
            None => ServerClock::shows(self.millis().await?),
        };
        self.current().clock = Some(clock);
        let binding = self.connector.binding.as_ref();
        let sells_until = binding.and_then(|binding| binding.sells_until());
        let deadline = sells_until.map_or(deadline, |until| until.min(deadline));
        Ok(clock.expiry(deadline, self.limit()))
    }

    /// Closes the connection. The next command opens a new one.
    pub(super) fn close(&self) {
        *self.current() = Current::default();
    }

    /// Drops the connection if the reply is an error of the connection. A late error of an old
    /// connection does not drop a new one.
    fn drop_if_broken<T>(&self, answer: RedisResult<T>, attempt: &Attempt) -> RedisResult<T> {
        if answer.as_ref().is_err_and(is_connection_error) {
            let mut current = self.current();
            let is_current = |now: &Attempt| now.ptr_eq(attempt);
            if current.attempt.as_ref().is_some_and(is_current) {
                *current = Current::default();
            }
        }
        answer
    }

    /// The connection, which other callers use too, and the attempt that opened it.
    pub(super) async fn get(&self) -> RedisResult<(MultiplexedConnection, Attempt)> {
        let (attempt, failure) = {
            let mut current = self.current();
            if let Some(attempt) = &current.attempt {
                match attempt.clone().now_or_never() {
                    Some(Ok(connection)) => return Ok((connection, attempt.clone())),
                    Some(Err(error)) => {
                        current.attempt = None;
                        current.failure = Some(error);
                    }
                    None => {}
                }
            }
            let start = || start_connecting(self.connector.clone());
            let attempt = current.attempt.get_or_insert_with(start).clone();
            (attempt, current.failure.clone())
        };
        let connected = match failure {
            None => attempt.clone().await,
            Some(failure) => {
                let wait = self.limit() / WAIT_DIVISOR_AFTER_FAILURE;
                let waited = timeout(wait, attempt.clone()).await;
                waited.unwrap_or(Err(failure))
            }
        };
        Ok((connected?, attempt))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        // No code panics while it holds this mutex.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts to connect in a separate task, because the caller may be cancelled before the end.
fn start_connecting(connector: Connector) -> Attempt {
    let task = tokio::spawn(async move { connector.connect().await });
    let connected = task.map(|ended| {
        ended.unwrap_or_else(|_| {
            let why = "the attempt to connect was aborted";
            Err(RedisError::from((ErrorKind::Io, why)))
        })
    });
    connected.boxed().shared()
}
