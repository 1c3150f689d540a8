//! A session of the test's own with the database, past the service: it locks rows and sees who
//! else does.
//!
//! All statements are about this session's database only, for the server may be shared.

use std::time::Duration;

use sqlx::{Connection, Executor, MySqlConnection, PgConnection, SqliteConnection};

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use super::SOON;
use crate::support::services::Backend;

/// What `InnoDB` has open for others in this database.
const MYSQL_OPEN: &str = "SELECT count(*) FROM information_schema.innodb_trx
    JOIN information_schema.processlist ON id = trx_mysql_thread_id
    WHERE db = database() AND id <> connection_id()";

/// `InnoDB` refreshes that table only when nobody has read it for so long.
const MYSQL_REFRESHES_AFTER: Duration = Duration::from_millis(110);

/// Whoever reads it, one at a time.
static MYSQL_READER: Mutex<()> = Mutex::const_new(());

/// Statements that take as long as only one that waits does.
const MYSQL_WAITING: &str = "SELECT count(*) FROM information_schema.processlist
    WHERE db = database() AND id <> connection_id()
        AND command IN ('Query', 'Execute') AND time_ms > 100";

const POSTGRES_OPEN: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";

const POSTGRES_WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// Locks every level of the database, or fails at once.
const LOCK: &str = "BEGIN; SELECT on_hand FROM stock FOR UPDATE NOWAIT";

/// The same where the lock is on the file.
const LOCK_FILE: &str = "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE";

/// Locks the level of the SKU `hot` in the same way.
const LOCK_HOT: &str = "BEGIN; SELECT on_hand FROM stock WHERE sku = 'hot' FOR UPDATE NOWAIT";

#[derive(Debug)]
pub(super) enum Session {
    Sqlite(SqliteConnection),
    Mysql(MySqlConnection),
    Postgres(PgConnection),
}

impl Session {
    pub(super) async fn open(backend: Backend, url: &str) -> Self {
        match backend {
            Backend::Sqlite => SqliteConnection::connect(url).await.map(Self::Sqlite),
            Backend::Mysql => MySqlConnection::connect(url).await.map(Self::Mysql),
            Backend::Postgres => PgConnection::connect(url).await.map(Self::Postgres),
        }
        .expect("the database can be reached")
    }

    /// How many transactions others have open. A file does not tell; there, a lock does.
    pub(super) async fn open_transactions(&mut self) -> i64 {
        match self {
            Self::Sqlite(_) => return 0,
            Self::Mysql(connection) => {
                let _alone = MYSQL_READER.lock().await;
                sleep(MYSQL_REFRESHES_AFTER).await;
                sqlx::query_scalar(MYSQL_OPEN).fetch_one(connection).await
            }
            Self::Postgres(connection) => {
                sqlx::query_scalar(POSTGRES_OPEN)
                    .fetch_one(connection)
                    .await
            }
        }
        .expect("the server can be asked")
    }

    /// How many sessions wait for a lock. Asked outside of a transaction: what that sees of others
    /// may stay as it was.
    async fn waiting(&mut self) -> i64 {
        match self {
            Self::Sqlite(_) => panic!("a file does not tell who waits"),
            Self::Mysql(connection) => {
                sqlx::query_scalar(MYSQL_WAITING)
                    .fetch_one(connection)
                    .await
            }
            Self::Postgres(connection) => {
                sqlx::query_scalar(POSTGRES_WAITING)
                    .fetch_one(connection)
                    .await
            }
        }
        .expect("the server can be asked")
    }

    async fn run(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(connection) => {
                connection.execute(sqlx::raw_sql(statement)).await.map(drop)
            }
            Self::Mysql(connection) => connection.execute(sqlx::raw_sql(statement)).await.map(drop),
            Self::Postgres(connection) => {
                connection.execute(sqlx::raw_sql(statement)).await.map(drop)
            }
        }
    }

    /// Locks every level, without waiting; whether that worked. To be followed by
    /// [`Self::unlock`], also where it did not.
    pub(super) async fn try_lock(&mut self) -> bool {
        let lock = match self {
            Self::Sqlite(_) => LOCK_FILE,
            Self::Mysql(_) | Self::Postgres(_) => LOCK,
        };
        self.run(lock).await.is_ok()
    }

    /// The same for the SKU `hot` only.
    pub(super) async fn try_lock_hot(&mut self) -> bool {
        self.run(LOCK_HOT).await.is_ok()
    }

    /// Gives up what is locked, if anything is.
    pub(super) async fn unlock(&mut self) {
        // Where the lock on a file was refused there is no transaction to end.
        let _ = self.run("ROLLBACK").await;
    }
}

/// Returns when somebody waits for a lock in the database at `url`.
///
/// # Panics
/// When nobody does within a bound.
pub(super) async fn somebody_waits(backend: Backend, url: &str) {
    let mut watcher = Session::open(backend, url).await;
    let deadline = Instant::now() + SOON;
    while watcher.waiting().await == 0 {
        assert!(Instant::now() < deadline, "nobody waits");
        sleep(Duration::from_millis(20)).await;
    }
}
