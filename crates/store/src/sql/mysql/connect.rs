//! MariaDB and MySQL: opens connections, sets up their sessions, and migrates the schema.

use std::str::FromStr;

use sqlx::migrate::MigrateError;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, MySqlConnection};

use crate::StoreOptions;
use crate::sql::dialect::Dialect;
use crate::sql::pool::{self, Server};
use crate::sql::{migration, statements};

/// The settings of every session except a migration's. sqlx sets the time zone. Strict mode, because
/// the server would otherwise truncate values. Only MariaDB reads `/*M! */`: after how many seconds it
/// ends an idle transaction and frees its rows. This service never pauses inside a transaction, so an
/// idle one has lost its client. (`idle_write_transaction_timeout` would spare transactions that have
/// only locked rows.)
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'
        /*M! , idle_transaction_timeout = 10 */";

/// How long a session waits for a lock, in seconds, and for a statement, in milliseconds. MariaDB
/// and MySQL each read their own line.
const TIME_LIMITS: &str = "SET SESSION innodb_lock_wait_timeout = ?
    /*M!100101 , SESSION max_statement_time = ? / 1000 */
    /*!50708 , SESSION max_execution_time = ? */";

/// The server releases the lock when the session ends. sqlx's own lock does not work on MariaDB: sqlx
/// asks for it with a negative time-out, is refused, and does not notice.
const MIGRATION_LOCK: &str = "SELECT get_lock(concat('stocklock.', md5(database())), ?)";

const FORGET_UNFINISHED: &str = "DELETE FROM _sqlx_migrations WHERE version = ? AND NOT success";

/// Zero unless the server's clock stands still during a statement.
const FIXED_CLOCK: &str = "SELECT sleep(0.001) + (sysdate(6) = now(6))";

fn options(url: &str) -> Result<MySqlConnectOptions, String> {
    let options = MySqlConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // A statement may wait a second for a row. That needs no warning.
        .disable_statement_logging();
    if options.get_database().is_none() {
        return Err("the URL names no database: mysql://user@host/database".to_owned());
    }
    Ok(options)
}

/// The server, and the time limits of its sessions.
#[derive(Debug, Clone)]
pub(crate) struct MySqlServer {
    options: MySqlConnectOptions,
    /// Seconds.
    lock_wait: u64,
    /// Milliseconds.
    statement: u64,
}

impl MySqlServer {
    pub(crate) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        let statement = pool::statement_limit(store.wait_limit).as_millis();
        Ok(Self {
            options: options(url)?,
            lock_wait: pool::lock_wait_seconds(store.wait_limit),
            statement: u64::try_from(statement).map_err(|error| error.to_string())?,
        })
    }
}

impl Server for MySqlServer {
    const EMBEDDED: bool = false;

    type Connection = MySqlConnection;

    async fn open(&self) -> sqlx::Result<MySqlConnection> {
        let mut connection = self.options.connect().await?;
        refuse_fixed_clock(&mut connection).await?;
        connection.execute(SESSION).await?;
        sqlx::query(TIME_LIMITS)
            .bind(self.lock_wait)
            .bind(self.statement)
            .execute(&mut connection)
            .await?;
        Ok(connection)
    }

    async fn run(connection: &mut MySqlConnection, statement: &'static str) -> sqlx::Result<()> {
        connection.execute(statement).await.map(drop)
    }

    async fn read_clock(connection: &mut MySqlConnection) -> sqlx::Result<i64> {
        let clock = statements::clock(&Self::WORDS).text;
        sqlx::query_scalar(clock).fetch_one(connection).await
    }
}

/// Refuses a server on which a statement cannot see how long it has waited.
async fn refuse_fixed_clock(connection: &mut MySqlConnection) -> sqlx::Result<()> {
    let fixed: i64 = sqlx::query_scalar(FIXED_CLOCK)
        .fetch_one(connection)
        .await?;
    if fixed != 0 {
        let problem = "the server runs with --sysdate-is-now, so a statement cannot see that it has \
                       expired; remove this option";
        return Err(sqlx::Error::Configuration(problem.into()));
    }
    Ok(())
}

/// Brings the schema up to date. Several processes take turns.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or_default();
    let create_database = format!("CREATE DATABASE `{database}` CHARACTER SET utf8mb4");
    let options = &options;
    migration::run_until_done(&server, migration::is_transient_on_server, || async move {
        let mut connection = options.connect().await?;
        migrate_alone(&mut connection).await?;
        Ok(connection.close().await?)
    })
    .await
    .map_err(|error| migration::explain(&error, &server, &create_database))
}

async fn migrate_alone(connection: &mut MySqlConnection) -> Result<(), MigrateError> {
    refuse_fixed_clock(connection).await?;
    // Longer than the whole migration may take, so that the caller's bound decides.
    let granted: Option<i64> = sqlx::query_scalar(MIGRATION_LOCK)
        .bind(2 * migration::LIMIT.as_secs())
        .fetch_one(&mut *connection)
        .await?;
    if granted != Some(1) {
        let refused = "the server did not grant the lock for migrations".to_owned();
        return Err(sqlx::Error::Protocol(refused).into());
    }
    let mut migrator = sqlx::migrate!("../../migrations/mysql");
    migrator.set_locking(false);
    loop {
        match migrator.run_direct(None, &mut *connection, false).await {
            // Data definitions commit as they go, so a process that was killed leaves a migration half
            // done. Ours can be repeated, and no other process migrates while we hold the lock.
            Err(MigrateError::Dirty(version)) => {
                let forgotten = sqlx::query(FORGET_UNFINISHED).bind(version);
                forgotten.execute(&mut *connection).await?;
            }
            result => return result,
        }
    }
}
