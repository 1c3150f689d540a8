//! How connections are opened, waited for, and checked before they are used again.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Manager, Metrics, Object, PoolError, QueueMode, RecycleError, WeakPool};
use sqlx::Connection;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::connection::close;
use super::health::GiveBack;
use super::queue::{Key, Need, Permit, Queue};
use super::row::RowConnections;
use super::{PooledConnection, ServerHealth, StatementEnd, Transaction};
use crate::clock::ServerClock;
use crate::sql::errors::{Verdict, before_commit, classify, is_connection_limit, unavailable};
use crate::{Result, StoreError};
use stocklock_core::stock::Sku;

/// How long a connection may take to answer a ping. Far more than a round trip, and far less than a
/// request waits for a connection, because several connections may be dead.
const PING_LIMIT: Duration = Duration::from_millis(250);

/// How long the check for readiness may take. Its statement does no work, so the connection is dead or the
/// server does not answer.
const CHECK_LIMIT: Duration = Duration::from_millis(450);

/// How long a pool does with fewer connections after the server has refused one.
const SET_ASIDE: Duration = Duration::from_secs(10);

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
        RowConnections::new(self.for_sku(sku))
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
    pub(super) async fn acquire_for(
        &self,
        need: Need,
        since: Instant,
    ) -> Result<PooledConnection<S>> {
        let wait_limit = self.health.wait_limit;
        loop {
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
            if let Some(connection) = opened {
                let health = Arc::clone(&self.health);
                return Ok(PooledConnection::new(permit, connection, health));
            }
            // The request waits for one of the pool's other connections.
            set_aside(permit);
        }
    }

    /// Tries again if the server is starting, or is away for a moment. `refusal` is its last error. `None`
    /// if the server allows no more connections, and there are others.
    async fn connect(
        &self,
        connections: &Connections<S>,
        refusal: &mut Option<sqlx::Error>,
    ) -> Result<Option<Object<Opener<S>>>, PoolError<sqlx::Error>> {
        let mut pause = FIRST_PAUSE;
        loop {
            match connections.get().await {
                Err(PoolError::Backend(error)) if is_connection_limit(&error) => {
                    if connections.status().size > 0 {
                        return Ok(None);
                    }
                    self.health.make_room();
                    *refusal = Some(error);
                }
                Err(PoolError::Backend(error)) if is_transient(&error) => {
                    self.health.record_failure();
                    *refusal = Some(error);
                }
                answer => {
                    if refusal.is_some() {
                        self.health.has_room();
                    }
                    return answer.map(Some);
                }
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
        let end = Instant::now() + CHECK_LIMIT;
        let mut connection = timeout_at(end, self.acquire())
            .await
            .map_err(unavailable)??;
        match timeout_at(end, connection.run(S::CHECK_WRITABLE)).await {
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
        let closed = self.close_idle(Duration::ZERO);
        self.connections().for_each(deadpool::managed::Pool::close);
        closed.await;
    }

    /// Closes connections that no request has used for this long.
    pub(crate) fn close_idle(&self, idle_for: Duration) -> impl Future<Output = ()> + Send {
        let mut idle = Vec::new();
        for connections in self.connections() {
            let result = connections.retain(|_, metrics| metrics.last_used() < idle_for);
            idle.extend(result.removed);
        }
        let closed = futures_util::future::join_all(idle.into_iter().map(close));
        async move {
            closed.await;
        }
    }

    /// The maximum number of connections.
    pub(crate) fn size(&self) -> usize {
        let sizes = self.connections();
        sizes.map(|connections| connections.status().max_size).sum()
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
    let connections: Connections<S> =
        connections.expect("no time-out is set, which would need a runtime");
    health.add(Box::new(connections.weak()));
    connections
}

impl<S: Server> GiveBack for WeakPool<Opener<S>> {
    fn give_back(&self) -> bool {
        let Some(pool) = self.upgrade() else {
            return false;
        };
        let mut one = pool.status().size > 1;
        // Of those that are idle, the first one was idle for longest.
        let removed = pool.retain(|_, _| !std::mem::take(&mut one)).removed;
        let gave = !removed.is_empty();
        for connection in removed {
            tokio::spawn(close(connection));
        }
        gave
    }
}

/// Takes a permit out of use for a while, because the server allows no more connections.
pub(super) fn set_aside(mut permit: Permit) {
    permit.leave_sku();
    tokio::spawn(async move {
        sleep(SET_ASIDE).await;
        drop(permit);
    });
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
