//! How connections are opened, waited for, and checked before they are used again.

use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, PoolError, QueueMode, RecycleError};
use sqlx::Connection;
use tokio::time::{Instant, timeout};

use super::health::Silence;
use super::{PooledConnection, ServerHealth, Transaction};
use crate::StoreError;
use crate::sql::errors::{Verdict, before_commit, classify};
use stocklock_core::ports;

/// How long a connection may take to answer a ping. Far more than a round trip, and far less than a
/// request waits for a connection, because several connections may be dead.
const PING_LIMIT: Duration = Duration::from_millis(250);

/// Older connections are not reused, so that what a server keeps for each of them does not grow
/// without bound, and a server that moved is found at its new address.
const LIFETIME: Duration = Duration::from_mins(30);

/// How long the orderly close of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// The first pause before a server that refuses connections is tried again. Each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause before SQLite's write lock is asked for again: another process may hold it.
const WRITER_PAUSE: Duration = Duration::from_millis(5);

/// A database: how to connect to it.
pub(crate) trait Server: fmt::Debug + Send + Sync + Sized + 'static {
    /// Whether the database is a library in this process: it cannot fall silent.
    const EMBEDDED: bool;

    /// One of sqlx's.
    type Connection: Connection + fmt::Debug + Send + Sync;

    /// Opens a connection and sets up its session.
    fn open(&self) -> impl Future<Output = sqlx::Result<Self::Connection>> + Send;

    /// Runs a statement that has neither parameters nor rows.
    fn run(
        connection: &mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
}

/// A bounded number of connections, opened when they are first needed.
#[derive(Debug)]
pub(crate) struct Pool<S: Server> {
    connections: deadpool::managed::Pool<Opener<S>>,
    health: Arc<ServerHealth>,
    wait_limit: Duration,
}

impl<S: Server> Clone for Pool<S> {
    fn clone(&self) -> Self {
        Self {
            connections: self.connections.clone(),
            health: Arc::clone(&self.health),
            wait_limit: self.wait_limit,
        }
    }
}

/// Opens connections for a pool, and checks them.
#[derive(Debug)]
pub(super) struct Opener<S> {
    server: S,
    health: Arc<ServerHealth>,
}

/// A connection and its age.
#[derive(Debug)]
pub(super) struct Opened<C> {
    pub(super) connection: C,
    pub(super) health: Arc<ServerHealth>,
    since: Instant,
    idle_since: Instant,
}

impl<C: Connection> Opened<C> {
    pub(super) fn is_old(&self) -> bool {
        self.since.elapsed() > LIFETIME
    }

    /// The server answered all requests, and the connection is idle from now on.
    pub(super) fn rest(&mut self) {
        self.health.record_success();
        self.idle_since = Instant::now();
    }

    /// Closes the connection in order, if the server answers.
    pub(super) async fn close(self) {
        match timeout(CLOSE_LIMIT, self.connection.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "a connection was not closed in order"),
            Err(_elapsed) => tracing::debug!("a connection was closed without an answer"),
        }
    }
}

impl<S: Server> Manager for Opener<S> {
    type Type = Opened<S::Connection>;
    type Error = sqlx::Error;

    async fn create(&self) -> sqlx::Result<Self::Type> {
        let connection = self.server.open().await?;
        self.health.record_success();
        Ok(Opened {
            connection,
            health: Arc::clone(&self.health),
            since: Instant::now(),
            idle_since: Instant::now(),
        })
    }

    /// Pings only connections that may be dead: each ping costs a request one round trip.
    async fn recycle(
        &self,
        opened: &mut Self::Type,
        _: &Metrics,
    ) -> Result<(), RecycleError<sqlx::Error>> {
        if self.health.trusts(opened.idle_since.elapsed()) {
            return Ok(());
        }
        match timeout(PING_LIMIT, opened.connection.ping()).await {
            Ok(answer) => Ok(answer?),
            Err(_elapsed) => Err(RecycleError::message("the connection does not answer")),
        }
    }
}

impl<S: Server> Pool<S> {
    pub(crate) fn new(server: S, size: u32, health: &Arc<ServerHealth>) -> Self {
        let opener = Opener {
            server,
            health: Arc::clone(health),
        };
        let connections = deadpool::managed::Pool::builder(opener)
            .max_size(size as usize)
            // The connection that was used last is most likely to be alive.
            .queue_mode(QueueMode::Lifo)
            .build()
            .expect("no time-out is set, which would need a runtime");
        Self {
            connections,
            health: Arc::clone(health),
            wait_limit: health.wait_limit(),
        }
    }

    /// Waits for an operation no longer than a server that answers can take, with `statements` that
    /// may each wait for a lock.
    pub(crate) async fn bounded<T>(
        &self,
        statements: u32,
        operation: impl Future<Output = T> + Send,
    ) -> Result<T, Silence> {
        self.health.bounded(statements, operation).await
    }

    /// A connection within the wait limit.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] if all are busy, [`StoreError::Unavailable`] if the database does
    /// not answer.
    pub(crate) async fn acquire(&self) -> Result<PooledConnection<S>, StoreError> {
        let mut refusal = None;
        match timeout(self.wait_limit, self.connect(&mut refusal)).await {
            Ok(Ok(opened)) => Ok(PooledConnection::new(opened)),
            Ok(Err(error)) => Err(unavailable(error)),
            Err(_elapsed) if self.is_busy() && self.health.is_answering() => {
                Err(StoreError::Exhausted)
            }
            Err(_elapsed) => Err(unavailable(refusal.unwrap_or(sqlx::Error::PoolTimedOut))),
        }
    }

    /// Tries again if the server is starting, or is away for a moment. `refusal` is its last error.
    async fn connect(
        &self,
        refusal: &mut Option<sqlx::Error>,
    ) -> Result<Object<Opener<S>>, PoolError<sqlx::Error>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match self.connections.get().await {
                Err(PoolError::Backend(error)) if is_transient(&error) => *refusal = Some(error),
                answer => return answer,
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(self.wait_limit / 5);
        }
    }

    /// Begins a transaction.
    pub(crate) async fn begin(
        &self,
        statement: &'static str,
    ) -> Result<Transaction<S>, StoreError> {
        let mut tx = Transaction::begun(self.acquire().await?);
        let started = Instant::now();
        loop {
            match tx.run(statement).await {
                Ok(()) => return Ok(tx),
                // Only SQLite waits for a lock here.
                Err(error)
                    if classify(&error) == Verdict::RollBackThenRetry
                        && started.elapsed() < self.wait_limit =>
                {
                    tokio::time::sleep(WRITER_PAUSE.mul_f64(fastrand::f64())).await;
                }
                Err(error) => {
                    // The server answered that it did not begin.
                    tx.committed();
                    return Err(before_commit(error));
                }
            }
        }
    }

    /// Asks the database whether it answers.
    pub(crate) async fn ping(&self) -> Result<(), StoreError> {
        let mut connection = self.acquire().await?;
        let answer = connection.send().ping().await;
        connection.received(answer).map_err(before_commit)
    }

    /// Closes idle connections, and refuses new users. Connections in use are closed when they come
    /// back.
    pub(crate) async fn close(&self) {
        let idle = self.connections.retain(|_, _| false).removed;
        self.connections.close();
        futures_util::future::join_all(idle.into_iter().map(Opened::close)).await;
    }

    /// Whether all connections are open and in use.
    fn is_busy(&self) -> bool {
        let status = self.connections.status();
        status.size >= status.max_size && status.available == 0
    }
}

fn unavailable(error: impl Into<ports::DriverError>) -> StoreError {
    StoreError::Unavailable(ports::Server::Database, error.into())
}

/// Whether a server that refuses a connection with this error may accept one a moment later.
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
        ),
        // SQLite: another process has locked the file for a moment.
        sqlx::Error::Database(_) if classify(error) == Verdict::RollBackThenRetry => true,
        sqlx::Error::Database(error) => error.is_transient_in_connect_phase(),
        _ => false,
    }
}
