//! A database server, and how its connections are opened, checked before they are used again, and closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, RecycleError};
use sqlx::Connection;
use tokio::time::timeout;

use super::{ServerHealth, StatementEnd};
use crate::clock::ServerClock;
use crate::sql::statement::{AnyRow, Statement, Value};
use crate::sql::statements::Texts;

/// How long a connection may take to answer a ping. Far more than a round trip, and far less than a
/// request waits for a connection, because several connections may be dead.
const PING_LIMIT: Duration = Duration::from_millis(250);

/// How long the orderly close of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// A database: how to connect to it.
pub(crate) trait Server: fmt::Debug + Send + Sync + Sized + 'static {
    /// Whether the database is a library in this process: it cannot fall silent.
    const EMBEDDED: bool;

    /// A statement that fails if the server refuses writes. It needs no table and waits for no lock.
    const CHECK_WRITABLE: &'static str;

    /// One of sqlx's.
    type Connection: Connection + fmt::Debug + Send + Sync;

    /// Opens a connection and sets up its session.
    fn open(&self) -> impl Future<Output = sqlx::Result<Self::Connection>> + Send;

    /// Makes the database end a statement on the connection when its [`StatementEnd`] says so. `None` if a
    /// server does that by itself.
    fn limit_statements(
        &self,
        _: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<Option<Arc<StatementEnd>>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Executes a statement, and returns its rows. The answer is read to its end.
    fn fetch<T: AnyRow>(
        connection: &mut Self::Connection,
        statement: Statement,
        values: &[Value<'_>],
    ) -> impl Future<Output = sqlx::Result<Vec<T>>> + Send;

    /// Executes a statement, and returns how many rows it changed.
    fn execute(
        connection: &mut Self::Connection,
        statement: Statement,
        values: &[Value<'_>],
    ) -> impl Future<Output = sqlx::Result<u64>> + Send;

    /// Runs a statement that has neither parameters nor rows.
    fn run(
        connection: &mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The statements of this dialect.
    fn texts() -> &'static Texts;
}

/// A connection, and the clock of its server.
#[derive(Debug)]
pub(crate) struct Timed<C> {
    pub(super) connection: C,
    pub(super) clock: ServerClock,
    pub(super) end: Option<Arc<StatementEnd>>,
}

/// Opens connections for a pool, and checks them.
#[derive(Debug)]
pub(super) struct Opener<S> {
    pub(super) server: S,
    pub(super) health: Arc<ServerHealth>,
}

impl<S: Server> Manager for Opener<S> {
    type Type = Timed<S::Connection>;
    type Error = sqlx::Error;

    async fn create(&self) -> sqlx::Result<Timed<S::Connection>> {
        let mut connection = self.server.open().await?;
        let end = self.server.limit_statements(&mut connection).await?;
        let clock = ServerClock::shows(clock::<S>(&mut connection).await?);
        self.health.record_success();
        Ok(Timed {
            connection,
            clock,
            end,
        })
    }

    /// Refuses connections that must be replaced. Reads the clock if the last reading is old or the
    /// connection may be dead. That costs a request one round trip.
    async fn recycle(
        &self,
        timed: &mut Timed<S::Connection>,
        metrics: &Metrics,
    ) -> Result<(), RecycleError<sqlx::Error>> {
        if self.health.is_outdated(metrics.age()) {
            return Err(RecycleError::message("the connection must be replaced"));
        }
        if self.health.trusts(metrics.last_used()) && timed.clock.is_recent() {
            return Ok(());
        }
        match timeout(PING_LIMIT, clock::<S>(&mut timed.connection)).await {
            Ok(clock) => {
                timed.clock = ServerClock::shows(clock?);
                Ok(())
            }
            Err(_elapsed) => Err(RecycleError::message("the connection does not answer")),
        }
    }
}

/// What the clock of the server shows.
async fn clock<S: Server>(connection: &mut S::Connection) -> sqlx::Result<i64> {
    let shown: Vec<(i64,)> = S::fetch(connection, (&S::texts().clock).into(), &[]).await?;
    let (shown,) = shown.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(*shown)
}

/// Closes the connection in order, if the server answers.
pub(super) async fn close(timed: Timed<impl Connection>) {
    match timeout(CLOSE_LIMIT, timed.connection.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection was not closed in order"),
        Err(_elapsed) => tracing::debug!("a connection was closed without an answer"),
    }
}
