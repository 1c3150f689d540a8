//! Locks in a table of a SQL database: MariaDB, MySQL, PostgreSQL or SQLite.
//!
//! *Guarantees:* exclusion as long as the database keeps its commits and its clock does not jump;
//! leases on the database's clock; locks survive a restart of the database. *Costs:* one round trip
//! with a commit to acquire, one to release, one or two for a hundred renewals. *Fails when* the
//! database fails over and loses commits, or its clock jumps forward. Two clients may then hold the
//! lock, and only the token in the guarded write detects it. *Use when* the data is in that database,
//! and no other server shall be needed.
//!
//! A lock is one row, which exists while the lock is held. One statement acquires it: it inserts the
//! row, or takes over a row whose lease has expired. A release removes only its own row. Readable for
//! operators: `SELECT name, owner, nonce, token, expires_at FROM distributed_lock`.
//!
//! **Tokens** are the time of the acquisition in µs, or more: greater than the last token in the row
//! of an expired lock, and than each token that this client has seen. On SQLite, whose clock counts in
//! ms, the greatest token is stored. On the other databases a token may be lower than an earlier one
//! if the lock was released in between, another client acquires it, and the database's clock went back
//! by more than the time since then. The holder's writes are then refused until the clock has caught
//! up.
//!
//! **Waiting**: PostgreSQL sends a notification (`LISTEN`, `NOTIFY`), but only if a client waits:
//! notifications serialise the commits of a database. On the other databases waiters poll, 2 ms to 20 ms
//! apart. A connection pooler must keep sessions (PgBouncer: `pool_mode = session`).
//!
//! **Periods** of jobs are rows whose name begins with `\:`, and whose lease is the period. The next
//! period of the job takes the row over. A row that expired ten minutes ago is removed by the first
//! release of any process.
//!
//! **Late requests**: if a request to acquire a lock was not answered, its release buries the nonce in
//! the row for a minute. The request gets no lock if it arrives in that time.
//!
//! Advisory locks (`pg_advisory_lock`, `GET_LOCK`) are not used: each needs a connection of its own
//! for as long as it is held, and they have no token.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::backend::{
    Backend, Contender, Nudge, Properties, Release, ReleaseRequest, Renewal, Renewed, Request,
};
use crate::error::{BackendError, LostReason};
use crate::managers::Managers;
use crate::nonce::Nonce;
use crate::source::SourceId;

mod connections;
mod contender;
mod errors;
pub mod fence;
mod mysql;
mod periods;
mod postgres;
mod session;
mod sqlite;
mod wakeups;

use connections::{Connected, Connections, Database};
use contender::SqlContender;
use session::BURIED;
use wakeups::WakeUps;

/// The statements that create the tables on PostgreSQL, for a migration of yours.
pub const POSTGRES_TABLES: &str = postgres::SCHEMA;
/// The statements that create the tables on MariaDB and MySQL.
pub const MYSQL_TABLES: &str = mysql::SCHEMA;
/// The statements that create the tables on SQLite.
pub const SQLITE_TABLES: &str = sqlite::SCHEMA;

/// The maximum length of the name of the owner in characters.
const OWNER_MAX: usize = 255;

/// The settings of a [`SqlBackend`]. Created by [`SqlBackend::builder`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct SqlBuilder {
    database: Result<Database, BackendError>,
    owner: String,
    connections: usize,
    connect_limit: Duration,
    response_limit: Duration,
    fallback: Duration,
}

impl SqlBuilder {
    /// Sets what the column `owner` says about this process, at most 255 characters. Default: the process
    /// id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into().chars().take(OWNER_MAX).collect();
        self
    }

    /// Sets the maximum number of connections, at least one. PostgreSQL needs one more while a task
    /// waits. Default: 4; SQLite: 1.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// Sets how long opening a connection may take. Default: 1 s.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.connect_limit = limit;
        self
    }

    /// Sets how long an answer may take. Default: 1 s. The server ends statements that take longer;
    /// MariaDB and MySQL count waiting for a row in whole seconds.
    pub fn response_limit(mut self, limit: Duration) -> Self {
        self.response_limit = limit;
        self
    }

    /// Sets after how long a waiter on PostgreSQL asks again if its wake-up was lost. Default: 1 s.
    pub fn fallback(mut self, fallback: Duration) -> Self {
        self.fallback = fallback;
        self
    }

    /// Builds the back end. It connects when it is first used.
    ///
    /// # Errors
    /// Returns an error if the URL is not valid.
    pub fn build(self) -> Result<SqlBackend, BackendError> {
        let database = self.database?;
        let source = SourceId::new(database.name(), None);
        let limit = self.connect_limit.max(self.response_limit);
        let wake_ups = match &database {
            Database::Postgres(options) => Some(WakeUps::new(options.clone(), limit)),
            Database::MySql(_) | Database::Sqlite(_) => None,
        };
        Ok(SqlBackend(Arc::new(Sql {
            connections: Connections::new(
                database,
                self.connections,
                self.connect_limit,
                self.response_limit,
            ),
            wake_ups,
            managers: Managers::default(),
            source,
            last_token: AtomicI64::new(0),
            sweeps: Mutex::default(),
            owner: self.owner,
            limits: self.connect_limit + self.response_limit,
            fallback: self.fallback,
        })))
    }
}

/// Locks in a table of a SQL database. Clones share the connections.
#[derive(Debug, Clone)]
pub struct SqlBackend(Arc<Sql>);

#[derive(Debug)]
struct Sql {
    connections: Connections,
    /// `None` if the database cannot wake clients.
    wake_ups: Option<WakeUps>,
    managers: Managers,
    source: SourceId,
    /// The greatest token that this client has seen.
    last_token: AtomicI64,
    sweeps: Mutex<Sweeps>,
    owner: String,
    limits: Duration,
    fallback: Duration,
}

impl SqlBackend {
    /// Creates a back end from a URL: `mysql://…`, `mariadb://…`, `postgres://…` or `sqlite://FILE`.
    ///
    /// The feature `sql-tls` adds TLS; the URL chooses it, as in sqlx.
    ///
    /// # Errors
    /// Returns an error if the URL is not valid. No connection is opened yet.
    pub fn new(url: &str) -> Result<Self, BackendError> {
        Self::builder(url).build()
    }

    /// Creates a builder for a back end with other settings.
    pub fn builder(url: &str) -> SqlBuilder {
        let database = Database::parse(url);
        let connections = match &database {
            Ok(Database::Sqlite(_)) => 1,
            _ => 4,
        };
        SqlBuilder {
            database,
            owner: format!("process {}", std::process::id()),
            connections,
            connect_limit: Duration::from_secs(1),
            response_limit: Duration::from_secs(1),
            fallback: Duration::from_secs(1),
        }
    }

    /// Creates the tables `distributed_lock` and `distributed_lock_source`, unless they exist. With
    /// your own migrations, use [`POSTGRES_TABLES`], [`MYSQL_TABLES`] or [`SQLITE_TABLES`] instead.
    ///
    /// # Errors
    /// Returns an error if the database does not answer or refuses.
    pub async fn create_tables(&self) -> Result<(), BackendError> {
        self.0.connections.create_tables().await
    }
}

impl Sql {
    /// A connection to a database that has the tables.
    async fn connected(&self) -> Result<Connected, BackendError> {
        self.connections.get(&self.source).await
    }

    /// Removes rows that have no use, if there may be some.
    async fn sweep(&self) -> Result<(), BackendError> {
        if !self.sweeps().is_due() {
            return Ok(());
        }
        let connected = self.connected().await?;
        let sweep = self.connections.send(connected, |session| session.sweep());
        sweep.await
    }

    /// A nonce was buried, so its row can be removed later.
    fn sweep_later(&self) {
        // The database may have buried it only just before it answered.
        let later = Duration::from_micros(BURIED.unsigned_abs()) + self.limits;
        self.sweeps().plan(Instant::now() + later);
    }

    fn sweeps(&self) -> MutexGuard<'_, Sweeps> {
        self.sweeps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When rows without use may be left. No task waits for that time: a release compares it.
#[derive(Debug, Default)]
struct Sweeps {
    /// Another process may have left something before the first one.
    is_first_done: bool,
    next: Option<Instant>,
    last: Option<Instant>,
}

impl Sweeps {
    fn plan(&mut self, at: Instant) {
        self.next.get_or_insert(at);
        self.last = Some(at);
    }

    /// Whether to sweep now. The next call returns false.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        let is_first = !std::mem::replace(&mut self.is_first_done, true);
        let is_planned = self.next.take_if(|at| *at <= now).is_some();
        if is_planned {
            self.next = self.last.take_if(|at| *at > now);
        }
        is_first || is_planned
    }
}

#[async_trait]
impl Backend for SqlBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: self.0.connections.database().name(),
            response_limit: self.0.limits,
            session: None,
        }
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(SqlContender::new(Arc::clone(&self.0), request))
    }

    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError> {
        // Nearly always all leases are the same.
        let mut by_lease: BTreeMap<i64, (Vec<String>, Vec<String>)> = BTreeMap::new();
        for Renewal {
            name, nonce, lease, ..
        } in renewals
        {
            let (names, nonces) = by_lease.entry(microseconds(*lease)).or_default();
            names.push(escaped(name));
            nonces.push(nonce.to_string());
        }
        let mut held = HashSet::new();
        for (lease, (names, nonces)) in by_lease {
            let connected = self.0.connected().await?;
            let renewed = self.0.connections.send(connected, move |session| {
                Box::pin(async move { session.renew(&names, &nonces, lease).await })
            });
            held.extend(renewed.await?);
        }
        let renewed = |renewal: &Renewal| {
            if held.contains(&renewal.nonce.to_string()) {
                Renewed::Held(renewal.lease)
            } else {
                Renewed::Gone(LostReason::Stolen)
            }
        };
        Ok(renewals.iter().map(renewed).collect())
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError> {
        let (name, nonce) = (escaped(&request.name), request.nonce.to_string());
        let unclear = request.unclear;
        let connected = self.0.connected().await?;
        let released = self.0.connections.send(connected, move |session| {
            Box::pin(async move {
                if unclear {
                    session.bury(&name, &nonce).await
                } else {
                    session.release(&name, &nonce).await
                }
            })
        });
        let released = released.await?;
        if unclear {
            self.0.sweep_later();
        } else if let Err(error) = self.0.sweep().await {
            tracing::debug!(%error, "rows of old locks could not be removed");
        }
        Ok(if released {
            Release::Released
        } else {
            Release::NotHeld
        })
    }

    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        self.0.begin_period(name, nonce, period).await
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError> {
        let name = escaped(name);
        let connected = self.0.connected().await?;
        let holder = self.0.connections.send(connected, move |session| {
            Box::pin(async move { session.holder(&name).await })
        });
        let holder = holder.await?;
        Ok(holder.is_some_and(|holder| holder == nonce.to_string()))
    }

    async fn ping(&self) -> Result<(), BackendError> {
        let connected = self.0.connected().await?;
        let ping = self.0.connections.send(connected, |session| session.ping());
        ping.await
    }

    fn attach(&self, nudge: Nudge) {
        self.0.managers.attach(&nudge, || self.0.connections.open());
    }

    async fn detach(&self, nudge: &Nudge) {
        self.0.managers.detach(nudge, || {
            if let Some(wake_ups) = &self.0.wake_ups {
                wake_ups.close();
            }
            self.0.connections.close();
        });
    }
}

/// PostgreSQL stores no zero byte in a text. The result is at most twice as long.
fn escaped(name: &str) -> String {
    name.replace('\\', r"\\").replace('\0', r"\0")
}

fn microseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}
