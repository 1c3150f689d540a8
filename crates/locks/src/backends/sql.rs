//! Locks in a table of a SQL database: MariaDB, MySQL, PostgreSQL or SQLite.
//!
//! *Guarantees:* exclusion as long as the database keeps its commits and its clock does not jump; leases on the
//! database's clock; locks survive a restart of the database. *Costs:* one round trip with a commit to acquire, one
//! to release, one or two for a hundred renewals. *Fails when* the database fails over and loses commits, or its
//! clock jumps forward. Two clients may then hold the lock, and only the token in the guarded write detects it.
//! *Use when* the data is in that database, and no other server shall be needed.
//!
//! A lock is one row, which exists while the lock is held. One message acquires it: it inserts a free
//! row if there is none, and then takes the row if it is free or its lease has expired. A release
//! removes only its own row. Readable for operators:
//! `SELECT name, owner, nonce, token, expires_at FROM distributed_lock`.
//!
//! Two kinds of rows are not removed by a release: rows with buried nonces (see below), for two minutes,
//! and rows of dead holders, for ten minutes after the end of their lease. A process that releases locks
//! looks for such rows at its first release and then every ten seconds.
//!
//! **Tokens** are the time of the acquisition in µs, or more: greater than the last token in the row
//! of an expired lock, and than each token that this client has seen. The clock is read when the row
//! exists, so a later holder gets a later time. On SQLite, whose clock counts in ms, the greatest token
//! is stored. On the other databases a token may be lower than an earlier one if the lock was released
//! in between, another client acquires it, and the database's clock went back by more than the time
//! since then. The holder's writes are then refused until the clock has caught up.
//!
//! **Waiting**: PostgreSQL sends a notification (`LISTEN`, `NOTIFY`), but only if a client waits:
//! notifications serialise the commits of a database. The connection that listens stays open until the
//! last manager is shut down. On the other databases waiters poll, 2 ms to 20 ms
//! apart. A connection pooler must keep sessions (PgBouncer: `pool_mode = session`).
//!
//! **Periods** of jobs are rows whose name begins with `\:`, and whose lease is the period. The next
//! period of the job takes the row over. A row that expired ten minutes ago is removed by the first
//! release of any process.
//!
//! **Late requests**: if a request to acquire a lock was not answered, its release buries the nonce in
//! the row for two minutes. The request gets no lock if it arrives in that time.
//!
//! **Revocations** bury the nonce, and add `R` and all digits of the nonce but the first to the same list. Both
//! stay for two minutes, or until the lease would have ended.
//!
//! Advisory locks (`pg_advisory_lock`, `GET_LOCK`) are not used: each needs a connection of its own
//! for as long as it is held, and they have no token.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::backend::{
    Backend, Contender, Left, Nudge, Numbers, Properties, Release, Renewed, Request, Sealed,
};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::lock::lock;
use crate::shared::managers::Managers;
use crate::shared::nonce::Nonce;
use crate::shared::setters::setters;
use crate::shared::source::SourceId;

mod admin;
mod connections;
mod contender;
mod errors;
pub mod fence;
mod session;
mod wakeups;

use connections::{Connected, Connections, Database, Servers, Use};
use contender::SqlContender;
use session::{Session, mysql, postgres, reason, sqlite};
use wakeups::WakeUps;

/// The statements that create the tables on PostgreSQL, for a migration of yours.
pub const POSTGRES_TABLES: &str = postgres::SCHEMA;
/// The statements that create the tables on MariaDB and MySQL.
pub const MYSQL_TABLES: &str = mysql::SCHEMA;
/// The statements that create the tables on SQLite.
pub const SQLITE_TABLES: &str = sqlite::SCHEMA;

/// How often a process that releases locks looks for rows without use.
const SWEEP_EVERY: Duration = Duration::from_secs(10);

/// The maximum length of the name of the owner in characters.
const OWNER_MAX: usize = 255;

/// The settings of a [`SqlBackend`]. Created by [`SqlBackend::builder`].
#[derive(Debug, Clone)]
#[must_use = "it does nothing before build"]
pub struct SqlBuilder {
    databases: Result<Vec<Database>, BackendError>,
    owner: String,
    connections: usize,
    connect_limit: Duration,
    response_limit: Duration,
    fallback: Duration,
}

impl SqlBuilder {
    /// Adds the URL of another server of the same database, to which a connection goes if the last one does not
    /// answer or refuses writes: after a failover. Of several servers, each gets an equal part of the connect limit.
    pub fn alternative(mut self, url: &str) -> Self {
        if let Ok(databases) = &mut self.databases {
            match Database::parse(url) {
                Ok(database) => databases.push(database),
                Err(error) => self.databases = Err(error),
            }
        }
        self
    }

    /// Sets what the column `owner` says about this process, at most 255 characters. Default: the process
    /// id.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = owner.into().chars().take(OWNER_MAX).collect();
        self
    }

    /// Sets the maximum number of connections, at least one. If there are several, acquisitions leave
    /// one to renewals and releases. PostgreSQL needs one more from the first time that a task waits.
    /// Default: 5; SQLite: 1.
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    setters! {
        /// Sets how long opening a connection may take. Default: 1 s.
        connect_limit: Duration;

        /// Sets how long an answer may take. Default: 1 s. The server ends statements that take longer;
        /// MariaDB and MySQL count waiting for a row in whole seconds.
        response_limit: Duration;

        /// Sets after how long a waiter on PostgreSQL asks again if its wake-up was lost. Default: 1 s.
        fallback: Duration;
    }

    /// Builds the back end. It connects when it is first used.
    ///
    /// # Errors
    /// Returns an error if a URL is not valid, or they name databases of several kinds, or files.
    pub fn build(self) -> Result<SqlBackend, BackendError> {
        let databases = self.databases?;
        let (name, count) = (databases[0].name(), databases.len());
        if count > 1
            && databases
                .iter()
                .any(|other| other.name() != name || name == "sqlite")
        {
            let cause = "several URLs must all be of MariaDB and MySQL, or all of PostgreSQL";
            return Err(BackendError::permanent(cause));
        }
        let source = SourceId::new(name, None);
        let limit = self.connect_limit.max(self.response_limit);
        let servers = Servers::new(databases);
        let wake_ups = match servers.reached() {
            Database::Postgres(_) => Some(WakeUps::new(servers.clone(), limit)),
            Database::MySql(_) | Database::Sqlite(_) => None,
        };
        Ok(SqlBackend(Arc::new(Sql {
            connections: Connections::new(
                servers,
                self.connections,
                self.connect_limit,
                self.response_limit,
            ),
            wake_ups,
            managers: Managers::default(),
            source,
            last_token: AtomicI64::new(0),
            next_sweep: Mutex::default(),
            owner: self.owner,
            // Waiting for a connection, opening it, and the answer.
            limits: self.response_limit + self.connect_limit + self.response_limit,
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
    /// When to look for rows without use. No task waits for that time: a release compares it. `None`:
    /// at once, because an earlier process may have left rows.
    next_sweep: Mutex<Option<Instant>>,
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
            _ => 5,
        };
        SqlBuilder {
            databases: database.map(|database| vec![database]),
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
    async fn connected(&self, what_for: Use) -> Result<Connected, BackendError> {
        self.connections.get(&self.source, what_for).await
    }

    /// Sends a request over such a connection.
    async fn ask<T: Send + 'static>(
        &self,
        what_for: Use,
        request: impl for<'a> FnOnce(&'a mut Session) -> BoxFuture<'a, sqlx::Result<T>> + Send + 'static,
    ) -> Result<T, BackendError> {
        let connected = self.connected(what_for).await?;
        self.connections.send(connected, request).await
    }

    /// Removes rows that have no use, in a task, if it is time: the next local waiter does not wait for
    /// that. A sweep that failed is repeated at the next time.
    fn sweep_if_due(self: &Arc<Self>) {
        let now = Instant::now();
        let mut next = lock(&self.next_sweep);
        if next.is_some_and(|at| now < at) {
            return;
        }
        *next = Some(now + SWEEP_EVERY);
        drop(next);
        let sql = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = sql.sweep().await {
                tracing::debug!(%error, "rows of old locks could not be removed");
            }
        });
    }

    async fn sweep(&self) -> Result<(), BackendError> {
        while self
            .ask(Use::MayQueue, |session| session.sweep().boxed())
            .await?
        {}
        Ok(())
    }
}

impl Sealed for SqlBackend {}

#[async_trait]
impl Backend for SqlBackend {
    fn properties(&self) -> Properties {
        Properties {
            name: self.0.connections.database().name(),
            response_limit: self.0.limits,
            session: None,
            max_lease: None,
            lookahead: 0,
        }
    }

    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    fn contender(&self, request: Request) -> Box<dyn Contender> {
        Box::new(SqlContender {
            sql: Arc::clone(&self.0),
            request,
            subscription: None,
            busy: 0,
            left: Left::Nothing,
        })
    }

    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError> {
        // Nearly always all leases are the same.
        let mut by_lease: BTreeMap<i64, (Vec<String>, Vec<String>)> = BTreeMap::new();
        for Request {
            name, nonce, lease, ..
        } in renewals
        {
            let (names, nonces) = by_lease.entry(microseconds(*lease)).or_default();
            names.push(escaped(name));
            nonces.push(nonce.to_string());
        }
        let (mut held, mut gone) = (HashSet::new(), Vec::new());
        for (lease, (names, nonces)) in by_lease {
            let (asked, locks) = (names.clone(), names.len());
            let renewed = self.0.ask(Use::Urgent, move |session| {
                async move { session.renew(&names, &nonces, lease).await }.boxed()
            });
            let renewed = renewed.await?;
            // A lock is seldom lost, so a renewal normally does not ask why.
            if renewed.len() < locks {
                gone.extend(self.0.gone(asked).await);
            }
            held.extend(renewed);
        }
        let renewed = |renewal: &Request| {
            let nonce = renewal.nonce.to_string();
            if held.contains(&nonce) {
                Renewed::Held(renewal.lease)
            } else {
                Renewed::Gone(reason(&gone, &nonce))
            }
        };
        Ok(renewals.iter().map(renewed).collect())
    }

    async fn release(&self, request: &Request, unclear: bool) -> Result<Release, BackendError> {
        let (name, nonce) = (escaped(&request.name), request.nonce.to_string());
        let (asked, wanted) = (vec![name.clone()], nonce.clone());
        let released = self.0.ask(Use::Urgent, move |session| {
            let release = async move {
                if unclear {
                    session.bury(&name, &nonce).await
                } else {
                    session.release(&name, &nonce).await
                }
            };
            release.boxed()
        });
        let was_held = released.await?;
        self.0.sweep_if_due();
        if was_held {
            return Ok(Release::Released);
        }
        let gone = self.0.gone(asked).await;
        Ok(Release::NotHeld(reason(&gone, &wanted)))
    }

    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError> {
        let (stored, nonce) = (self.0.read(name).await?, nonce.to_string());
        Ok(match stored {
            None => Some(LostReason::Stolen),
            Some(row) if row.is_held_by(&nonce) => None,
            Some(row) => Some(reason(&[row.gone], &nonce)),
        })
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
