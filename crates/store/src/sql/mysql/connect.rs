//! MariaDB and MySQL: opens connections, sets up their sessions, and migrates the schema.

use std::str::FromStr;

use sqlx::migrate::{MigrateError, Migration};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{ConnectOptions, Executor, MySqlConnection, SqlStr};

use super::galera;
use super::parameters::query;
use super::procedure;
use super::requirements::refusals;
use crate::StoreOptions;
use crate::sql::dialect::Dialect as _;
use crate::sql::hosts::Hosts;
use crate::sql::migration::{self, Exclusion, MigrationServer, migrations};
use crate::sql::pool::{self, Server};
use crate::sql::statement::trusted;
use crate::sql::statements::driver;

/// The settings of every session. sqlx sets the time zone.
///
/// Without strict mode, the server truncates values that do not fit. Only MariaDB executes the text
/// in `/*M! */`. It then ends a transaction that is idle for 10 seconds, and frees its rows. This
/// service never pauses inside a transaction, so an idle one has lost its client.
/// `idle_write_transaction_timeout` would not end a transaction that has only locked rows. MySQL would
/// truncate the answer of `stocklock_write_1` to 1,024 bytes.
///
/// The others have these values by default. An operator can change them for all sessions. Then COMMIT would
/// begin another transaction or end the session, statements would be refused, results would lack rows, or
/// unique indexes and CHECKs would accept what they must refuse.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
    SET SESSION autocommit = 1, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',
        SESSION group_concat_max_len = 65536, SESSION completion_type = 0,
        SESSION sql_safe_updates = 0, SESSION sql_big_selects = 1,
        SESSION sql_select_limit = 18446744073709551615, SESSION unique_checks = 1
        /*M! , check_constraint_checks = 1, idle_transaction_timeout = 10 */";

/// Ends the statements of a session that would wait for a row: MariaDB at once, MySQL after a second.
const PROMPT: &str = "SET SESSION innodb_lock_wait_timeout = /*M! 0 */ /*!50708 1 */";

/// Sets up a session. A statement waits so many seconds for a row or a table, and takes so many milliseconds; zero
/// means no limit. MariaDB and MySQL each read their own line.
fn session(lock: u64, statement: u128) -> SqlStr {
    trusted(format!(
        "{SESSION}; SET SESSION innodb_lock_wait_timeout = {lock}, SESSION lock_wait_timeout = {lock}
        /*M!100101 , SESSION max_statement_time = {statement} / 1000 */
        /*!50708 , SESSION max_execution_time = {statement} */"
    ))
}

/// Waits for a second. The node releases the lock when the session ends. sqlx's own lock does not
/// work on MariaDB: sqlx asks for it with a negative time-out, is refused, and does not notice.
const MIGRATION_LOCK: &str = "SELECT get_lock(concat('stocklock.', md5(database())), 1)";

/// Data definitions commit as they go, so a process that was killed leaves a migration half done.
/// Ours can be repeated, and no other process migrates meanwhile.
const FORGET_UNFINISHED: &str = "DELETE FROM _sqlx_migrations WHERE version = ? AND NOT success";

fn options(url: &str) -> Result<MySqlConnectOptions, String> {
    let options = MySqlConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // Otherwise sqlx warns about a statement that takes a second. Waiting that long for a row
        // is normal.
        .disable_statement_logging();
    if options.get_database().is_none() {
        return Err("the URL names no database: mysql://user@host/database".to_owned());
    }
    Ok(options)
}

/// The server, and the settings of its sessions.
#[derive(Debug, Clone)]
pub(crate) struct MySqlServer {
    hosts: Hosts<MySqlConnectOptions>,
    session: SqlStr,
}

impl MySqlServer {
    pub(crate) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        let lock = pool::lock_wait_seconds(store.wait_limit);
        let statement = pool::statement_limit(store.wait_limit).as_millis();
        Ok(Self {
            hosts: Hosts::new(url, store.wait_limit, options)?,
            session: session(lock, statement),
        })
    }

    /// The same server, with sessions that do not wait for rows.
    pub(crate) fn prompt(self) -> Self {
        Self {
            session: trusted(format!("{}; {PROMPT}", self.session.as_str())),
            hosts: self.hosts,
        }
    }

    pub(crate) fn for_migration(url: &str) -> Result<Self, String> {
        Ok(Self {
            hosts: Hosts::new(url, migration::CONNECT_LIMIT, options)?,
            session: session(pool::lock_wait_seconds(migration::LOCK_LIMIT), 0),
        })
    }
}

impl Server for MySqlServer {
    const EMBEDDED: bool = false;

    /// Unlike `BEGIN`, it is refused if `read_only` is set and the user is not exempt.
    const CHECK_WRITABLE: &'static str = "START TRANSACTION READ WRITE; ROLLBACK";

    type Connection = MySqlConnection;

    driver!(query);

    async fn open(&self) -> sqlx::Result<MySqlConnection> {
        let open = |options: MySqlConnectOptions, others| async move {
            let mut connection = options.connect().await?;
            connection.execute(self.session.clone()).await?;
            galera::follow(&mut connection).await?;
            if others {
                connection.execute(Self::CHECK_WRITABLE).await?;
            }
            Ok(connection)
        };
        self.hosts.open(open).await
    }
}

impl MigrationServer for MySqlServer {
    fn migrations() -> Vec<Migration> {
        migrations!(
            1 "initial" "mysql/0001_initial.sql",
            2 "write" "mysql/0002_write.sql",
            3 "holds" "mysql/0003_holds.sql",
            4 "keys" "mysql/0004_keys.sql",
            5 "events" "mysql/0005_events.sql",
        )
    }

    async fn refusals(&self, connection: &mut MySqlConnection) -> sqlx::Result<Vec<String>> {
        refusals(connection).await
    }

    async fn try_lock(
        &self,
        connection: &mut MySqlConnection,
    ) -> Result<Option<Exclusion>, MigrateError> {
        let granted: Option<i64> = sqlx::query_scalar(MIGRATION_LOCK)
            .fetch_one(&mut *connection)
            .await?;
        if granted != Some(1) {
            return Ok(None);
        }
        if !galera::is_on(connection).await? {
            return Ok(Some(migration::until_closed()));
        }
        galera::try_lock(connection, self.open().await?).await
    }

    async fn prepare(connection: &mut MySqlConnection, migration: &Migration) -> sqlx::Result<()> {
        let forgotten = sqlx::query(FORGET_UNFINISHED).bind(migration.version);
        forgotten.execute(connection).await.map(drop)
    }

    async fn check_schema(connection: &mut MySqlConnection) -> sqlx::Result<()> {
        procedure::check(connection, Self::texts()).await
    }

    fn explain(&self, error: &MigrateError) -> String {
        let options = self.hosts.reached();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let database = options.get_database().unwrap_or_default();
        let create_database = format!("CREATE DATABASE `{database}` CHARACTER SET utf8mb4");
        migration::explain_server(error, &server, &create_database)
    }
}
