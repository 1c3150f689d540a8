//! How connections are waited for.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use deadpool::managed::{Object, PoolError, QueueMode, WeakPool};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::health::GiveBack;
use super::opener::{Opener, Server, close};
use super::queue::{Key, Need, Queue};
use super::{PooledConnection, ServerHealth, Transaction};
use crate::sql::errors::{Verdict, before_commit, classify, is_connection_limit, unavailable};
use crate::{Result, StoreError};
use stocklock_core::stock::Sku;

/// How long the check for readiness may take. Its statement does no work, so the connection is dead or the
/// server does not answer.
const CHECK_LIMIT: Duration = Duration::from_millis(450);

/// The first pause before a server that refuses connections is tried again. Each is twice the last.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

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
            permit.set_aside();
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
