//! One multiplexed connection, for scripts and single commands: made when it is needed, and again
//! after it was lost.
//!
//! However many need it, one attempt is made at a time, and what comes of it comes to all who wait:
//! a server that says nothing costs each of them one limit, and not one after the other.

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

use super::failure::{Failed, connecting, is_of_the_connection, reading};
use super::scripts::Script;
use crate::StoreError;

/// How connections are made.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: Client,
    /// How long to wait for a connection, and for an answer.
    limit: Duration,
    /// How long the server may wait before it answers.
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

    /// One for connections on which the server is asked to wait so long.
    pub(super) fn patient(&self, wait: Duration) -> Self {
        Self {
            wait,
            ..self.clone()
        }
    }

    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        // Both limits explicitly: the driver's own gives up on an answer after 500 ms.
        let limits = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.limit))
            .set_response_timeout(Some(self.limit + self.wait));
        self.client
            .get_multiplexed_async_connection_with_config(&limits)
            .await
    }
}

/// The connection that everybody shares. No command that changes what later ones mean (`WATCH`,
/// `MULTI` outside of one message, `SELECT`) and none that waits may be sent on it. Clones share it.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    connector: Connector,
    current: Arc<Mutex<Current>>,
}

/// A connection and its generation.
type Connected = (MultiplexedConnection, u64);

/// An attempt to connect, for all who wait for it.
type Attempt = futures_util::future::Shared<BoxFuture<'static, RedisResult<Connected>>>;

#[derive(Debug, Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// Counts connections, so that a late failure of an old one does not end a new one.
    generation: u64,
    /// The one that is under way.
    attempt: Option<Attempt>,
    /// What the last attempt failed with, if it did.
    failure: Option<RedisError>,
}

/// After a failed attempt, which part of the limit the next one is waited for: a server that is back
/// answers at once, and while it is not, its callers' slots are needed by others.
const AFTER_A_FAILURE: u32 = 8;

impl Shared {
    pub(super) fn new(connector: Connector) -> Self {
        Self {
            connector,
            current: Arc::default(),
        }
    }

    /// How long an answer is waited for.
    pub(super) fn limit(&self) -> Duration {
        self.connector.limit
    }

    /// Runs a command that changes nothing.
    pub(super) async fn read<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let (mut connection, generation) = self.get().await.map_err(connecting)?;
        let answer = command.query_async(&mut connection).await;
        self.noted(answer, generation).map_err(reading)
    }

    /// Runs commands that change nothing, in one message.
    pub(super) async fn read_all<T: FromRedisValue>(
        &self,
        commands: &Pipeline,
    ) -> Result<T, StoreError> {
        let (mut connection, generation) = self.get().await.map_err(connecting)?;
        let answer = commands.query_async(&mut connection).await;
        self.noted(answer, generation).map_err(reading)
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

    /// Runs a script by its hash, or by its text on a server that does not know it yet. What is
    /// written into the command is the number of keys, the keys, the arguments.
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

    /// The same for a script that changes nothing.
    pub(super) async fn look(
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

    /// A connection to hold on to, shared like any other.
    pub(super) async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let (connection, _) = self.get().await.map_err(connecting)?;
        Ok(connection)
    }

    /// Ends the connection; the next command makes another one.
    pub(super) fn close(&self) {
        lock(&self.current).connection = None;
    }

    async fn try_write<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failed> {
        let (mut connection, generation) = self.get().await.map_err(Failed::Unsent)?;
        let answer = command.query_async(&mut connection).await;
        self.noted(answer, generation).map_err(Failed::Unanswered)
    }

    /// Gives the connection up where the answer says that it is of no use any more.
    fn noted<T>(&self, answer: RedisResult<T>, generation: u64) -> RedisResult<T> {
        if answer.as_ref().is_err_and(is_of_the_connection) {
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
            let start = || begin(self.connector.clone(), Arc::clone(&self.current));
            let attempt = current.attempt.get_or_insert_with(start).clone();
            (attempt, current.failure.clone())
        };
        match failure {
            None => attempt.await,
            Some(failure) => {
                let wait = self.connector.limit / AFTER_A_FAILURE;
                let waited = tokio::time::timeout(wait, attempt).await;
                waited.unwrap_or(Err(failure))
            }
        }
    }
}

/// Begins to connect. In a task of its own: who asks may leave before the connection is there, and
/// the next one finds it.
fn begin(connector: Connector, current: Arc<Mutex<Current>>) -> Attempt {
    let ended = Arc::clone(&current);
    let task = tokio::spawn(async move {
        let connected = connector.connect().await;
        lock(&current).settle(connected)
    });
    let attempt = async move {
        task.await.unwrap_or_else(|_| {
            let why = RedisError::from((ErrorKind::Io, "the attempt to connect was ended"));
            lock(&ended).settle(Err(why))
        })
    };
    attempt.boxed().shared()
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    // Nothing panics while it is held.
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Current {
    fn get(&self) -> Option<Connected> {
        Some((self.connection.clone()?, self.generation))
    }

    /// The attempt is over.
    fn settle(&mut self, connected: RedisResult<MultiplexedConnection>) -> RedisResult<Connected> {
        self.attempt = None;
        self.failure = connected.as_ref().err().cloned();
        let connection = connected?;
        self.generation += 1;
        self.connection = Some(connection.clone());
        Ok((connection, self.generation))
    }
}

/// Runs commands on one connection that nobody else uses meanwhile.
pub(super) async fn on<T: FromRedisValue>(
    connection: &mut impl ConnectionLike,
    commands: &Pipeline,
) -> RedisResult<T> {
    commands.query_async(connection).await
}
