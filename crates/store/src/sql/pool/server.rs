//! How connections are opened, waited for, and checked before they are used again.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, PoolError, QueueMode, RecycleError};
use sqlx::Connection;
use tokio::time::{Instant, sleep, timeout};

use super::connection::close;
use super::queue::{Key, Need, Queue};
use super::{PooledConnection, ServerHealth, StatementEnd, Transaction};
use crate::clock::ServerClock;
use crate::sql::errors::{Verdict, before_commit, classify, unavailable};
use crate::{Result, StoreError};
use stocklock_core::stock::Sku;

/// How long a connection may take to answer a ping. Far more than a round trip, and far less than a
/// request waits for a connection, because several connections may be dead.
const PING_LIMIT: Duration = Duration::from_millis(250);

/// How long the check for readiness may take. Its statement does no work, so the connection is dead or the
/// server does not answer.
const CHECK_LIMIT: Duration = Duration::from_millis(450);

/// The first pause before a server that refuses connections is tried again. Each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

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

    /// Runs a statement that has neither parameters nor rows.
    fn run(
        connection: &mut Self::Connection,
        statement: &'static str,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// Reads the server's clock, in milliseconds since 1970.
    fn read_clock(
        connection: &mut Self::Connection,
    ) -> impl Future<Output = sqlx::Result<i64>> + Send;
}

/// A bounded number of connections, opened when they are first needed.
#[derive(Debug)]
pub(crate) struct Pool<S: Server> {
    /// A statement on them waits for a row that is locked.
    waiting: Connections<S>,
    /// A statement on them does not, if the pool has any.
    prompt: Option<Connections<S>>,
    queue: Arc<Queue>,
    /// Where its requests wait in the queue.
    key: Key,
    health: Arc<ServerHealth>,
}

type Connections<S> = deadpool::managed::Pool<Opener<S>>;

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
    server: S,
    health: Arc<ServerHealth>,
}

impl<S: Server> Manager for Opener<S> {
    type Type = Timed<S::Connection>;
    type Error = sqlx::Error;

    async fn create(&self) -> sqlx::Result<Timed<S::Connection>> {
        let mut connection = self.server.open().await?;
        let end = self.server.limit_statements(&mut connection).await?;
        let clock = ServerClock::shows(S::read_clock(&mut connection).await?);
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
        match timeout(PING_LIMIT, S::read_clock(&mut timed.connection)).await {
            Ok(clock) => {
                timed.clock = ServerClock::shows(clock?);
                Ok(())
            }
            Err(_elapsed) => Err(RecycleError::message("the connection does not answer")),
        }
    }
}

impl<S: Server> Pool<S> {
    /// At most `size` connections.
    pub(crate) fn new(server: S, size: u32, health: &Arc<ServerHealth>) -> Self {
        let size = size as usize;
        let queue = Queue::new(size, 0);
        Self {
            waiting: connections(server, size, health),
            prompt: None,
            queue,
            key: 0,
            health: Arc::clone(health),
        }
    }

    /// At most `size` connections, of which half (at least one) wait for locked rows. The others are
    /// opened by `prompt`, and do not wait.
    pub(crate) fn for_writes(server: S, prompt: S, size: u32, health: &Arc<ServerHealth>) -> Self {
        let size = size as usize;
        let waiting = (size / 2).max(1);
        Self {
            waiting: connections(server, waiting, health),
            prompt: Some(connections(prompt, size - waiting, health)),
            queue: Queue::new(waiting, size - waiting),
            key: 0,
            health: Arc::clone(health),
        }
    }

    /// The same connections, for requests that concern this SKU.
    pub(crate) fn for_sku(&self, sku: &Sku) -> Self {
        let mut hasher = DefaultHasher::new();
        sku.hash(&mut hasher);
        Self {
            waiting: self.waiting.clone(),
            prompt: self.prompt.clone(),
            queue: Arc::clone(&self.queue),
            key: hasher.finish(),
            health: Arc::clone(&self.health),
        }
    }

    /// The connections for one write that locks a row of this SKU.
    pub(crate) fn for_row(&self, sku: &Sku) -> RowConnections<S> {
        RowConnections {
            pool: self.for_sku(sku),
            since: Instant::now(),
            need: Need::Row,
            was_prompt: false,
        }
    }

    /// A connection within the wait limit, for statements that wait for no row.
    ///
    /// # Errors
    /// [`StoreError::Exhausted`] if all are busy, [`StoreError::Unavailable`] if the database does
    /// not answer.
    pub(crate) async fn acquire(&self) -> Result<PooledConnection<S>> {
        self.acquire_for(Need::NoRow, Instant::now()).await
    }

    /// The same for a need, and with a wait limit that began at `since`.
    async fn acquire_for(&self, need: Need, since: Instant) -> Result<PooledConnection<S>> {
        let wait_limit = self.health.wait_limit;
        // Not the whole limit, because the request has to wait for a row after this.
        let left = (wait_limit * 3 / 4).saturating_sub(since.elapsed());
        let Ok(permit) = timeout(left, self.queue.enter(self.key, need)).await else {
            return Err(if self.is_busy() && self.health.is_answering() {
                StoreError::Exhausted
            } else {
                unavailable(sqlx::Error::PoolTimedOut)
            });
        };
        let connections = match &self.prompt {
            Some(prompt) if permit.is_prompt() => prompt,
            _ => &self.waiting,
        };
        let mut refusal = None;
        let left = wait_limit.saturating_sub(since.elapsed());
        let opened = match timeout(left, self.connect(connections, &mut refusal)).await {
            Ok(opened) => opened.map_err(unavailable)?,
            Err(_elapsed) => {
                return Err(unavailable(refusal.unwrap_or(sqlx::Error::PoolTimedOut)));
            }
        };
        let health = Arc::clone(&self.health);
        Ok(PooledConnection::new(permit, opened, health))
    }

    /// Tries again if the server is starting, or is away for a moment. `refusal` is its last error.
    async fn connect(
        &self,
        connections: &Connections<S>,
        refusal: &mut Option<sqlx::Error>,
    ) -> Result<Object<Opener<S>>, PoolError<sqlx::Error>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match connections.get().await {
                Err(PoolError::Backend(error)) if is_transient(&error) => {
                    self.health.record_failure();
                    *refusal = Some(error);
                }
                answer => return answer,
            }
            sleep(pause).await;
            pause = (2 * pause).min(self.health.wait_limit / 5);
        }
    }

    /// Begins a transaction.
    pub(crate) async fn begin(&self, statement: &'static str) -> Result<Transaction<S>> {
        self.acquire().await?.begin(statement).await
    }

    /// Asks the database whether it accepts writes.
    pub(crate) async fn check_writable(&self) -> Result<()> {
        let mut connection = self.acquire().await?;
        match timeout(CHECK_LIMIT, connection.run(S::CHECK_WRITABLE)).await {
            Ok(answer) => answer.map_err(before_commit),
            // The next check tries another connection at once.
            Err(elapsed) => {
                connection.give_up();
                Err(unavailable(elapsed))
            }
        }
    }

    /// Closes idle connections, and refuses new users. Connections in use are closed when they come
    /// back.
    pub(crate) async fn close(&self) {
        let mut idle = Vec::new();
        for connections in self.connections() {
            idle.append(&mut connections.retain(|_, _| false).removed);
            connections.close();
        }
        futures_util::future::join_all(idle.into_iter().map(close)).await;
    }

    fn connections(&self) -> impl Iterator<Item = &Connections<S>> {
        std::iter::once(&self.waiting).chain(&self.prompt)
    }

    /// Whether every request that left the queue has its connection.
    fn is_busy(&self) -> bool {
        let mut connections = self.connections();
        connections.all(|connections| connections.status().waiting == 0)
    }
}

/// At most `size` connections.
fn connections<S: Server>(server: S, size: usize, health: &Arc<ServerHealth>) -> Connections<S> {
    let opener = Opener {
        server,
        health: Arc::clone(health),
    };
    let connections = deadpool::managed::Pool::builder(opener)
        .max_size(size)
        // The connection that was used last is most likely to be alive.
        .queue_mode(QueueMode::Lifo)
        .build();
    connections.expect("no time-out is set, which would need a runtime")
}

/// The connections for one write that locks a row: first of any kind, then one that waits for the row.
#[derive(Debug)]
pub(crate) struct RowConnections<S: Server> {
    pool: Pool<S>,
    /// Since when the write waits.
    since: Instant,
    need: Need,
    /// Whether the last connection was a prompt one.
    was_prompt: bool,
}

impl<S: Server> RowConnections<S> {
    /// The next connection.
    ///
    /// # Errors
    /// As [`Pool::acquire`].
    pub(crate) async fn acquire(&mut self) -> Result<PooledConnection<S>> {
        let connection = self.pool.acquire_for(self.need, self.since).await?;
        self.was_prompt = connection.is_prompt();
        Ok(connection)
    }

    /// Whether a write that ended with `error` is to be made again on the next connection: it met a lock
    /// on one that does not wait. It changed nothing.
    pub(crate) fn again(&mut self, error: &StoreError) -> bool {
        let met_a_lock = matches!(error, StoreError::LockWait(_) | StoreError::KeyInFlight(_));
        let again = met_a_lock && self.was_prompt;
        if again {
            self.need = Need::LockedRow;
        }
        again
    }
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
