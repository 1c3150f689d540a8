//! One multiplexed connection for scripts and single commands, opened on first use and after a loss.
//!
//! There is at most one attempt to connect at a time, and all callers wait for its result. If the
//! server does not respond, every caller therefore waits for one limit, not for one after another.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stocklock_core::ports::Server;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError,
    RedisResult, ServerErrorKind,
};

use super::failure::{Failed, connecting, is_connection_error, reading};
use super::scripts::Script;
use crate::StoreError;

/// Opens connections.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: Client,
    /// How long to wait for a connection, and for a reply.
    limit: Duration,
    /// How long a blocking command may block on the server, in addition to `limit`.
    wait: Duration,
}

impl Connector {
    pub(super) fn new(client: Client, limit: Duration) -> Self {
        Self {
            client,
            limit,
            wait: Duration::ZERO,
        }
    }

    /// A connector for connections with commands that block for up to `wait`.
    pub(super) fn with_blocking_wait(&self, wait: Duration) -> Self {
        Self {
            wait,
            ..self.clone()
        }
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // Set both limits, because the driver's default response timeout is 500 ms.
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit + self.wait));
        self.client
            .get_multiplexed_async_connection_with_config(&limits)
            .await
    }
}

/// The shared connection. Do not send blocking commands on it, and no commands that change the state
/// of the connection: `WATCH`, `SELECT`, or a `MULTI` that spans messages. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    connector: Connector,
    current: Arc<Mutex<Current>>,
}

/// A connection and its generation.
type Connected = (MultiplexedConnection, u64);

/// An attempt to connect, which all callers wait for.
type Attempt = futures_util::future::Shared<BoxFuture<'static, RedisResult<Connected>>>;

#[derive(Debug, Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// The number of connections so far. A late error of an old connection must not drop a new one.
    generation: u64,
    /// The attempt in progress.
    attempt: Option<Attempt>,
    /// The error of the last attempt, if it failed.
    failure: Option<RedisError>,
}

/// After a failed attempt, callers wait for the next one only this fraction of the limit. A server
/// that is back accepts at once. If it is still down, other requests need the callers' slots.
const WAIT_DIVISOR_AFTER_FAILURE: u32 = 8;

impl Shared {
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

    /// Sends a command that is safe to repeat.
    pub(super) async fn read<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let (mut connection, generation) = self.get().await.map_err(connecting)?;
        let answer = command.query_async(&mut connection).await;
        self.drop_if_broken(answer, generation).map_err(reading)
    }

    /// Sends commands that are safe to repeat, in one message.
    pub(super) async fn read_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, StoreError> {
        let (mut connection, generation) = self.get().await.map_err(connecting)?;
        let answer = commands.query_async(&mut connection).await;
        self.drop_if_broken(answer, generation).map_err(reading)
    }

    /// Runs a script with these keys and arguments.
    pub(super) async fn script(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let write_arguments = |command: &mut Cmd| {
            command.arg(keys.len()).arg(keys).arg(arguments);
        };
        Ok(self.run(script, write_arguments).await?)
    }

    /// Runs a script by its hash, or by its text if the server does not know the hash.
    /// `write_arguments` adds the number of keys, the keys and the arguments.
    pub(super) async fn run(
        &self,
        script: &Script,
        write_arguments: impl Fn(&mut Cmd),
    ) -> Result<Vec<String>, Failed> {
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            write_arguments(command.arg(script));
            command
        };
        match self.try_write(&command("EVALSHA", &script.hash)).await {
            Err(Failed::Unanswered(error))
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) =>
            {
                self.try_write(&command("EVAL", &script.code)).await
            }
            answer => answer,
        }
    }

    /// Runs a script that changes nothing.
    pub(super) async fn read_script(
        &self,
        script: &Script,
        keys: &[String],
    ) -> Result<Vec<String>, StoreError> {
        match self.script(script, keys, &[]).await {
            Err(StoreError::OutcomeUnknown(source)) => {
                Err(StoreError::ConnectionLost(Server::Redis, source))
            }
            answer => answer,
        }
    }

    /// The current connection, still shared with the other callers.
    pub(super) async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let (connection, _) = self.get().await.map_err(connecting)?;
        Ok(connection)
    }

    /// Closes the connection. The next command opens a new one.
    pub(super) fn close(&self) {
        lock(&self.current).connection = None;
    }

    async fn try_write<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failed> {
        let (mut connection, generation) = self.get().await.map_err(Failed::NotSent)?;
        let answer = command.query_async(&mut connection).await;
        self.drop_if_broken(answer, generation)
            .map_err(Failed::Unanswered)
    }

    /// Drops the connection if the reply is an error of the connection.
    fn drop_if_broken<T>(&self, answer: RedisResult<T>, generation: u64) -> RedisResult<T> {
        if answer.as_ref().is_err_and(is_connection_error) {
            let mut current = lock(&self.current);
            if current.generation == generation {
                current.connection = None;
            }
        }
        answer
    }

    async fn get(&self) -> RedisResult<Connected> {
        let (attempt, failure) = {
            let mut current = lock(&self.current);
            if let Some(connected) = current.get() {
                return Ok(connected);
            }
            let start = || start_connecting(self.connector.clone(), Arc::clone(&self.current));
            let attempt = current.attempt.get_or_insert_with(start).clone();
            (attempt, current.failure.clone())
        };
        match failure {
            None => attempt.await,
            Some(failure) => {
                let wait = self.connector.limit / WAIT_DIVISOR_AFTER_FAILURE;
                let waited = tokio::time::timeout(wait, attempt).await;
                waited.unwrap_or(Err(failure))
            }
        }
    }
}

/// Starts to connect in a separate task, because the caller may be cancelled before the end.
fn start_connecting(connector: Connector, current: Arc<Mutex<Current>>) -> Attempt {
    let ended = Arc::clone(&current);
    let task = tokio::spawn(async move {
        let connected = connector.connect().await;
        lock(&current).finish_attempt(connected)
    });
    let attempt = async move {
        task.await.unwrap_or_else(|_| {
            let why = RedisError::from((ErrorKind::Io, "the attempt to connect was aborted"));
            lock(&ended).finish_attempt(Err(why))
        })
    };
    attempt.boxed().shared()
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    // No code panics while it holds this mutex.
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Current {
    fn get(&self) -> Option<Connected> {
        Some((self.connection.clone()?, self.generation))
    }

    /// Stores the result of the attempt.
    fn finish_attempt(
        &mut self,
        connected: RedisResult<MultiplexedConnection>,
    ) -> RedisResult<Connected> {
        self.attempt = None;
        self.failure = connected.as_ref().err().cloned();
        let connection = connected?;
        self.generation += 1;
        self.connection = Some(connection.clone());
        Ok((connection, self.generation))
    }
}

/// Sends a pipeline on the given connection.
pub(super) async fn query<T: FromRedisValue>(
    connection: &mut impl ConnectionLike,
    commands: &Pipeline,
) -> RedisResult<T> {
    commands.query_async(connection).await
}
