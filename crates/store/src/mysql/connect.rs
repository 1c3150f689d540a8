//! MariaDB and `MySQL`: how to connect, what each session is set to, and what the server must be
//! set to.

use std::str::FromStr;

use sqlx::migrate::MigrateError;
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Connection, Executor, MySqlConnection};

use super::sql;
use crate::pool::{self, Server};
use crate::{StoreError, StoreOptions, migration};

/// The settings of every session but a migration's; the time zone is sqlx's doing. Strict, or the
/// server would clip what does not fit. What stands in `/*M! */` is read by MariaDB only: how many
/// seconds a transaction may be idle before the server ends it and frees its rows. (We never pause
/// inside of one, so whoever does is gone. `idle_write_transaction_timeout` would spare those that
/// have only locked rows so far.)
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
    SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'
        /*M! , idle_transaction_timeout = 10 */";

/// How long a session waits for a lock, in seconds, and for a statement, in milliseconds: each
/// server reads its own of the two.
const TIME_LIMITS: &str = "SET SESSION innodb_lock_wait_timeout = ?
    /*M!100101 , SESSION max_statement_time = ? / 1000 */
    /*!50708 , SESSION max_execution_time = ? */";

/// Locks held by a session are released when it ends, however it ends. `MIGRATION_LOCK` is ours
/// because sqlx asks MariaDB for its own with a negative time-out, is refused, and does not notice.
const MIGRATION_LOCK: &str = "SELECT get_lock(concat('stocklock.', md5(database())), ?)";

const FORGET_UNFINISHED: &str = "DELETE FROM _sqlx_migrations WHERE version = ? AND NOT success";

fn options(url: &str) -> Result<MySqlConnectOptions, String> {
    let options = MySqlConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // A statement may wait a second for a row: that is counted, and no warning each time.
        .disable_statement_logging();
    if options.get_database().is_none() {
        return Err("the URL names no database: mysql://user@host/database".to_owned());
    }
    Ok(options)
}

/// The server, and how its sessions are set up.
#[derive(Debug, Clone)]
pub(super) struct MySqlServer {
    options: MySqlConnectOptions,
    /// Seconds.
    lock_wait: u64,
    /// Milliseconds.
    statement: u64,
}

impl MySqlServer {
    pub(super) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        let statement = pool::statement_limit(store.wait_limit).as_millis();
        Ok(Self {
            options: options(url)?,
            lock_wait: pool::lock_wait_seconds(store.wait_limit),
            statement: u64::try_from(statement).map_err(|error| error.to_string())?,
        })
    }
}

impl Server for MySqlServer {
    type Connection = MySqlConnection;

    async fn open(&self) -> sqlx::Result<MySqlConnection> {
        let mut connection = self.options.connect().await?;
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

    /// `ROLLBACK` is welcome even where there is nothing to roll back.
    async fn end_transaction(connection: &mut MySqlConnection) -> sqlx::Result<()> {
        Self::run(connection, "ROLLBACK").await
    }
}

/// Settings under which an acknowledged sale can be lost.
pub(super) async fn unsafe_settings(
    connection: &mut MySqlConnection,
) -> Result<Vec<String>, StoreError> {
    let (flush, binary_log, sync_binary_log): (i64, i64, i64) = sqlx::query_as(sql::SETTINGS)
        .fetch_one(connection)
        .await
        .map_err(pool::failed)?;
    let mut found = Vec::new();
    if flush != 1 {
        found.push(format!(
            "innodb_flush_log_at_trx_commit is {flush}: a crash loses sales that were \
             acknowledged; set innodb_flush_log_at_trx_commit = 1"
        ));
    }
    if binary_log != 0 && sync_binary_log != 1 {
        found.push(format!(
            "sync_binlog is {sync_binary_log}: after a power cut the replicas may lack sales that \
             were acknowledged; set sync_binlog = 1"
        ));
    }
    Ok(found)
}

/// Brings the schema up to date. Processes that do so at once take turns.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?;
    let server = format!("{}:{}", options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or_default();
    let create_database = format!("CREATE DATABASE `{database}` CHARACTER SET utf8mb4");
    migration::until_settled(&server, migration::may_pass_on_a_server, || {
        let options = options.clone();
        async move {
            let mut connection = options.connect().await?;
            migrate_alone(&mut connection).await?;
            Ok(connection.close().await?)
        }
    })
    .await
    .map_err(|error| migration::explain(&error, &server, &create_database))
}

async fn migrate_alone(connection: &mut MySqlConnection) -> Result<(), MigrateError> {
    // Longer than the migration may take as a whole, so the caller's bound is the one that counts.
    let granted: Option<i64> = sqlx::query_scalar(MIGRATION_LOCK)
        .bind(2 * migration::LIMIT.as_secs())
        .fetch_one(&mut *connection)
        .await?;
    if granted != Some(1) {
        let refused = "the server did not grant the lock that migrations take turns by";
        return Err(MigrateError::Execute(sqlx::Error::Protocol(
            refused.to_owned(),
        )));
    }
    let mut migrator = sqlx::migrate!("../../migrations/mysql");
    migrator.set_locking(false);
    loop {
        match migrator.run_direct(None, &mut *connection, false).await {
            // Data definitions commit as they go, so whoever was killed amid a migration leaves it
            // half done. Ours are written to be repeatable, and nobody is at it while we hold the
            // lock.
            Err(MigrateError::Dirty(version)) => {
                let forgotten = sqlx::query(FORGET_UNFINISHED).bind(version);
                forgotten.execute(&mut *connection).await?;
            }
            settled => return settled,
        }
    }
}
