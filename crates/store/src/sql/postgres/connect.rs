//! PostgreSQL: opens connections, sets up their sessions, and migrates the schema.

use std::str::FromStr;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Executor, PgConnection, Postgres, SqlStr};

use super::requirements::refusals;
use crate::StoreOptions;
use crate::sql::dialect::Dialect as _;
use crate::sql::hosts::Hosts;
use crate::sql::migration::{self, Exclusion, MigrationServer, migrations};
use crate::sql::pool::{self, Server};
use crate::sql::statement::{query, trusted};
use crate::sql::statements::driver;

/// How long a transaction may be idle before the server ends it and frees its rows. This service
/// never pauses inside a transaction, so an idle one has lost its client.
const IDLE_TRANSACTION_LIMIT: Duration = Duration::from_secs(10);

/// How long a statement of a prompt session waits for a row. Zero would mean no limit.
const PROMPT_LIMIT: Duration = Duration::from_millis(2);

/// The server releases the lock when the session ends. Not sqlx's lock: sqlx waits for it inside a
/// statement, and an index that is built concurrently waits for all statements that are running.
const MIGRATION_LOCK: &str = "SELECT pg_try_advisory_lock(hashtextextended('stocklock schema', 0))";

/// What an interrupted `CREATE INDEX CONCURRENTLY` has left: sales maintain it, and no query uses it.
const DROP_INVALID_INDEXES: &str = "DO $$ DECLARE invalid regclass; BEGIN
    FOR invalid IN SELECT indexrelid FROM pg_index
        WHERE NOT indisvalid AND indrelid IN (to_regclass('stock'), to_regclass('movement'))
    LOOP EXECUTE format('DROP INDEX %s', invalid); END LOOP; END $$";

fn options(url: &str) -> Result<PgConnectOptions, String> {
    let options = PgConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        // A statement may wait a second for a row. That needs no warning.
        .disable_statement_logging()
        // PgBouncer refuses this parameter at the start of a session. No column is a float.
        .extra_float_digits(None);
    Ok(match options.get_application_name() {
        Some(_) => options,
        None => options.application_name("stocklock"),
    })
}

/// The server, and the settings of its sessions.
#[derive(Debug, Clone)]
pub(crate) struct PostgresServer {
    hosts: Hosts<PgConnectOptions>,
    session: SqlStr,
}

impl PostgresServer {
    pub(crate) fn at(url: &str, store: &StoreOptions) -> Result<Self, String> {
        // Bounds everything that is not a lock.
        let statement = pool::statement_limit(store.wait_limit);
        Ok(Self {
            hosts: Hosts::new(url, store.wait_limit, options)?,
            session: session(store.wait_limit.max(Duration::from_millis(1)), statement),
        })
    }

    /// The same server, with sessions that hardly wait for rows.
    pub(crate) fn prompt(self) -> Self {
        let (session, limit) = (self.session.as_str(), PROMPT_LIMIT.as_millis());
        Self {
            session: trusted(format!("{session}; SET lock_timeout = {limit}")),
            hosts: self.hosts,
        }
    }

    pub(crate) fn for_migration(url: &str) -> Result<Self, String> {
        Ok(Self {
            hosts: Hosts::new(url, migration::CONNECT_LIMIT, options)?,
            session: session(migration::LOCK_LIMIT, Duration::ZERO),
        })
    }
}

impl Server for PostgresServer {
    const EMBEDDED: bool = false;

    /// The setting is also `on` on a standby.
    const CHECK_WRITABLE: &'static str = "DO $$ BEGIN
        IF current_setting('transaction_read_only')::boolean THEN
            RAISE read_only_sql_transaction;
        END IF; END $$";

    type Connection = PgConnection;

    driver!(query::<Postgres>);

    async fn open(&self) -> sqlx::Result<PgConnection> {
        let open = |options: PgConnectOptions, others| async move {
            let mut connection = options.connect().await?;
            connection.execute(self.session.clone()).await?;
            if others {
                connection.execute(Self::CHECK_WRITABLE).await?;
            }
            Ok(connection)
        };
        self.hosts.open(open).await
    }
}

/// Sets up a session, within these limits; zero means no limit. By statements, because PgBouncer
/// refuses `options` at the start of a session. The server sets `synchronous_commit`, which is
/// checked at start.
///
/// A plan is kept while a table grows, so none may read a whole table because it is short. The planner takes
/// the statements that have to for very expensive, and would compile them.
fn session(lock: Duration, statement: Duration) -> SqlStr {
    trusted(format!(
        "SET default_transaction_isolation = 'read committed'; SET enable_seqscan = off; SET jit = off; \
         SET client_min_messages = warning; \
         SET lock_timeout = {}; \
         SET statement_timeout = {}; SET idle_in_transaction_session_timeout = {}",
        lock.as_millis(),
        statement.as_millis(),
        IDLE_TRANSACTION_LIMIT.as_millis()
    ))
}

impl MigrationServer for PostgresServer {
    fn migrations() -> Vec<Migration> {
        migrations!(
            1 "initial" "postgres/0001_initial.sql",
            3 "holds" "postgres/0003_holds.sql",
            4 "keys" "postgres/0004_keys.sql",
            5 "events" "postgres/0005_events.sql",
        )
    }

    async fn refusals(&self, connection: &mut PgConnection) -> sqlx::Result<Vec<String>> {
        refusals(connection, self.open().await?).await
    }

    async fn try_lock(
        &self,
        connection: &mut PgConnection,
    ) -> Result<Option<Exclusion>, MigrateError> {
        let lock = sqlx::query_scalar(MIGRATION_LOCK);
        let granted: bool = lock.fetch_one(connection).await?;
        Ok(granted.then(migration::until_closed))
    }

    /// An index that is built concurrently waits for every open transaction, but no sale waits for
    /// it. So its migration, which has no transaction, waits for locks without a limit.
    async fn prepare(connection: &mut PgConnection, migration: &Migration) -> sqlx::Result<()> {
        let short = migration::LOCK_LIMIT.as_millis();
        let clean_up = format!("SET lock_timeout = {short}; {DROP_INVALID_INDEXES}");
        connection.execute(trusted(clean_up)).await?;
        if migration.no_tx {
            connection.execute("SET lock_timeout = 0").await?;
        }
        Ok(())
    }

    async fn check_schema(_: &mut PgConnection) -> sqlx::Result<()> {
        Ok(())
    }

    fn explain(&self, error: &MigrateError) -> String {
        let options = self.hosts.reached();
        let server = format!("{}:{}", options.get_host(), options.get_port());
        let database = options.get_database().unwrap_or(options.get_username());
        let create_database = format!("CREATE DATABASE \"{database}\" ENCODING 'UTF8'");
        migration::explain_server(error, &server, &create_database)
    }
}
