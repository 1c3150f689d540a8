//! A few connections, opened on demand.
//!
//! Not sqlx's pool, which asks the server about each connection that comes back, and can hand out one
//! whose last request was not answered. Here a request runs in its own task, which its caller may
//! leave. The connection comes back when the request is answered, and is closed if it is not.

use std::fmt::{self, Debug, Formatter};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::ConnectOptions;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::errors::{Fate, backend_error, fate_after};
use super::session::{Session, mysql, postgres, sqlite};
use crate::shared::error::BackendError;
use crate::shared::lock::lock;
use crate::shared::source::SourceId;

/// How often the connections are replaced at most because the server refuses writes. A server that stays
/// read-only must not get a new connection for each refusal.
const REPLACE_EVERY: Duration = Duration::from_secs(1);

/// The database, with the settings of its connections.
#[derive(Clone)]
pub(super) enum Database {
    MySql(MySqlConnectOptions),
    Postgres(PgConnectOptions),
    Sqlite(SqliteConnectOptions),
}

impl Debug for Database {
    /// The options contain the password.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl Database {
    /// Reads a URL. The connections do not log: a statement that waits for a row needs no warning.
    pub(super) fn parse(url: &str) -> Result<Self, BackendError> {
        let invalid = |error: sqlx::Error| BackendError::permanent(error);
        let scheme = url.split(':').next().unwrap_or_default();
        Ok(match scheme {
            "mysql" | "mariadb" => {
                let options = MySqlConnectOptions::from_str(url).map_err(invalid)?;
                Self::MySql(options.disable_statement_logging())
            }
            "postgres" | "postgresql" => {
                let options = PgConnectOptions::from_str(url).map_err(invalid)?;
                // PgBouncer refuses this parameter at the start of a session. No column is a float.
                let options = options.extra_float_digits(None);
                Self::Postgres(options.disable_statement_logging())
            }
            "sqlite" => {
                let options = SqliteConnectOptions::from_str(url).map_err(invalid)?;
                Self::Sqlite(options.disable_statement_logging())
            }
            _ => {
                let cause =
                    "expected a URL that begins with mysql:, mariadb:, postgres: or sqlite:";
                return Err(BackendError::permanent(cause));
            }
        })
    }

    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::MySql(_) => "mysql",
            Self::Postgres(_) => "postgres",
            Self::Sqlite(_) => "sqlite",
        }
    }

    async fn connect(&self, limit: Duration) -> sqlx::Result<Session> {
        match self {
            Self::MySql(options) => mysql::connect(options, limit).await,
            Self::Postgres(options) => postgres::connect(options, limit).await,
            Self::Sqlite(options) => sqlite::connect(options, limit).await,
        }
    }
}

/// The servers that may have the database, and which of them was reached last. Clones share that.
#[derive(Debug, Clone)]
pub(super) struct Servers {
    databases: Arc<[Database]>,
    reached: Arc<AtomicUsize>,
}

impl Servers {
    pub(super) fn new(databases: Vec<Database>) -> Self {
        Self {
            databases: databases.into(),
            reached: Arc::default(),
        }
    }

    pub(super) fn reached(&self) -> &Database {
        &self.databases[self.reached.load(Ordering::Relaxed)]
    }

    /// Connects to the server that was reached last. If there are several, within a part of `limit`, and to the
    /// next one if it does not answer in that time or refuses writes.
    async fn connect(&self, limit: Duration, response_limit: Duration) -> sqlx::Result<Session> {
        let count = self.databases.len();
        if count == 1 {
            return self.databases[0].connect(response_limit).await;
        }
        let limit = limit / u32::try_from(count + 1).unwrap_or(u32::MAX);
        let first = self.reached.load(Ordering::Relaxed);
        let mut refusal = sqlx::Error::PoolTimedOut;
        for server in (first..first + count).map(|server| server % count) {
            let connect = async {
                let mut session = self.databases[server].connect(response_limit).await?;
                session.check_writable().await?;
                Ok(session)
            };
            let connected = {
                let _passing = Passing {
                    reached: &self.reached,
                    from: server,
                    to: (server + 1) % count,
                };
                timeout(limit, connect).await
            };
            match connected {
                Ok(Ok(session)) => {
                    self.reached.store(server, Ordering::Relaxed);
                    return Ok(session);
                }
                Ok(Err(error)) => refusal = error,
                Err(_elapsed) => {}
            }
        }
        Err(refusal)
    }
}

/// Lets the next attempt begin with the next server, also if this one is given up before its end.
struct Passing<'a> {
    reached: &'a AtomicUsize,
    from: usize,
    to: usize,
}

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        // Another attempt may have reached a server meanwhile.
        let (reached, from, to) = (self.reached, self.from, self.to);
        let _ = reached.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Connections {
    servers: Servers,
    connect_limit: Duration,
    response_limit: Duration,
    permits: Arc<Semaphore>,
    /// Limits the requests of [`Use::MayQueue`].
    places: Arc<Semaphore>,
    idle: Arc<Mutex<Idle>>,
}

#[derive(Default)]
struct Idle {
    sessions: Vec<Session>,
    /// Grows when the connections are closed. Those that are in use then do not come back.
    generation: u64,
    closed: bool,
    /// When they were last replaced because the server refused writes.
    replaced: Option<Instant>,
}

impl Debug for Idle {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} connections", self.sessions.len())
    }
}

/// How a request gets a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// All these requests leave one connection to the other ones, if there are several. With one
    /// connection, at most one of these is ahead of another request.
    MayQueue,
    /// Renewals and releases: others wait for them, and a lock is lost if they are late.
    Urgent,
}

pub(super) struct Connected {
    session: Session,
    generation: u64,
    permits: Permits,
}

/// To use a connection, and to be one of the requests that may queue.
type Permits = (OwnedSemaphorePermit, Option<OwnedSemaphorePermit>);

impl Connections {
    pub(super) fn new(
        servers: Servers,
        most: usize,
        connect_limit: Duration,
        response_limit: Duration,
    ) -> Self {
        Self {
            servers,
            connect_limit,
            response_limit,
            permits: Arc::new(Semaphore::new(most)),
            places: Arc::new(Semaphore::new(most.saturating_sub(1).max(1))),
            idle: Arc::default(),
        }
    }

    pub(super) fn database(&self) -> &Database {
        self.servers.reached()
    }

    /// Returns a connection that no other request uses. A new one reads the source of the tokens.
    pub(super) async fn get(
        &self,
        source: &SourceId,
        what_for: Use,
    ) -> Result<Connected, BackendError> {
        let permits = timeout(self.response_limit, self.permits(what_for));
        let busy = |_| BackendError::transient("all connections to the database are busy");
        let permits = permits.await.map_err(busy)?;
        let (session, generation) = {
            let mut idle = lock(&self.idle);
            if idle.closed {
                let cause = "the connections were closed by this process";
                return Err(BackendError::transient(cause));
            }
            (idle.sessions.pop(), idle.generation)
        };
        let session = match session {
            Some(session) => session,
            None => self.connect(Some(source)).await?,
        };
        Ok(Connected {
            session,
            generation,
            permits,
        })
    }

    async fn permits(&self, what_for: Use) -> Permits {
        let acquire = async |semaphore: &Arc<Semaphore>| {
            let permit = Arc::clone(semaphore).acquire_owned().await;
            permit.expect("the semaphores are never closed")
        };
        let place = match what_for {
            Use::MayQueue => Some(acquire(&self.places).await),
            Use::Urgent => None,
        };
        (acquire(&self.permits).await, place)
    }

    /// Creates the tables over a connection that no other request uses.
    pub(super) async fn create_tables(&self) -> Result<(), BackendError> {
        let mut session = self.connect(None).await?;
        let created = timeout(self.response_limit, session.create_tables());
        created.await.map_err(late)?.map_err(backend_error)
    }

    async fn connect(&self, source: Option<&SourceId>) -> Result<Session, BackendError> {
        let connect = async {
            let connect = self
                .servers
                .connect(self.connect_limit, self.response_limit);
            let mut session = connect.await?;
            if let Some(source) = source {
                let id = session.source(&source.candidate()).await?;
                source.saw(&id);
            }
            Ok(session)
        };
        let away = |_| BackendError::transient("no connection to the database in time");
        let connected = timeout(self.connect_limit, connect).await.map_err(away)?;
        connected.map_err(backend_error)
    }

    /// Sends a request in a task. The returned future may be dropped.
    pub(super) async fn send<T: Send + 'static>(
        &self,
        mut connected: Connected,
        request: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, sqlx::Result<T>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let (idle, limit) = (Arc::clone(&self.idle), self.response_limit);
        let task = tokio::spawn(async move {
            let answer = timeout(limit, request(&mut connected.session)).await;
            let fate = match &answer {
                Ok(Ok(_)) => Fate::Usable,
                Ok(Err(error)) => fate_after(error),
                Err(_) => Fate::Broken,
            };
            let closed = put_back(&idle, connected, fate);
            // The next request uses a new connection, which may lead to another server.
            let may_pass = fate == Fate::ReadOnly && !closed.is_empty();
            drop(closed);
            let answer = answer.map_err(late)?.map_err(backend_error);
            if may_pass {
                answer.map_err(BackendError::refused_for_now)
            } else {
                answer
            }
        });
        let stopped = |_| BackendError::transient("the Tokio runtime was shut down");
        task.await.map_err(stopped)?
    }

    /// Allows connections again after [`close`](Self::close).
    pub(super) fn open(&self) {
        lock(&self.idle).closed = false;
    }

    /// Closes all connections, and opens none before [`open`](Self::open).
    pub(super) fn close(&self) {
        let mut idle = lock(&self.idle);
        idle.closed = true;
        idle.generation += 1;
        let sessions = std::mem::take(&mut idle.sessions);
        drop(idle);
        drop(sessions);
    }
}

fn late(_: Elapsed) -> BackendError {
    BackendError::transient("the database did not answer in time")
}

/// Makes a connection idle, or returns connections to close. All idle ones are closed if this one is broken,
/// because they probably are too, and if the server refuses writes, but not each time.
fn put_back(idle: &Mutex<Idle>, connected: Connected, fate: Fate) -> Vec<Session> {
    let Connected {
        session,
        generation,
        permits,
    } = connected;
    let mut idle = lock(idle);
    let is_recent = |replaced: Instant| replaced.elapsed() < REPLACE_EVERY;
    let is_kept =
        fate == Fate::Usable || fate == Fate::ReadOnly && idle.replaced.is_some_and(is_recent);
    let closed = if generation != idle.generation {
        vec![session]
    } else if is_kept {
        idle.sessions.push(session);
        Vec::new()
    } else {
        if fate == Fate::ReadOnly {
            idle.replaced = Some(Instant::now());
        }
        idle.generation += 1;
        let mut closed = std::mem::take(&mut idle.sessions);
        closed.push(session);
        closed
    };
    // The next request must find the connection when it gets the permit.
    drop(idle);
    drop(permits);
    closed
}
