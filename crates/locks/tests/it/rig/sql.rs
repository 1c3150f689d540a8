//! A table in an empty database, behind a proxy if it has a server, under real time.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::{
    AssertSqlSafe, Connection, Executor, MySql, MySqlConnection, PgConnection, Postgres,
    QueryBuilder, SqlSafeStr, SqlStr, Sqlite, SqliteConnection,
};
use stocklock_locks::LockGuard;
use stocklock_locks::clock::BootClock;
use stocklock_locks::sql::{SqlBackend, SqlBuilder, fence};
use stocklock_testkit::proxy::Proxy;
use stocklock_testkit::servers::{Backend, PrivateServer, TestDatabase, fresh_database};

use super::{Faults, Rig, Served};

pub(crate) struct SqlRig {
    kind: Backend,
    /// Does not lead through the proxy.
    direct: String,
    proxied: Option<(Proxy, String)>,
    server: Option<PrivateServer>,
    _database: Option<TestDatabase>,
}

/// A transaction that has changed rows. Other connections wait for them.
pub(crate) struct OpenTransaction(BoxFuture<'static, ()>);

impl OpenTransaction {
    pub(crate) async fn commit(self) {
        self.0.await;
    }
}

/// A statement that a test has written.
#[expect(
    clippy::disallowed_methods,
    reason = "tests contain no text from outside"
)]
fn trusted(statement: impl Into<String>) -> SqlStr {
    AssertSqlSafe(statement.into()).into_sql_str()
}

/// Evaluates an expression with a connection that does not use the proxy.
macro_rules! with_connection {
    ($rig:expr, $connection:ident => $body:expr) => {
        match $rig.kind {
            Backend::Sqlite => {
                let mut $connection = SqliteConnection::connect(&$rig.direct).await.unwrap();
                $body
            }
            Backend::Mysql => {
                let mut $connection = MySqlConnection::connect(&$rig.direct).await.unwrap();
                $body
            }
            Backend::Postgres => {
                let mut $connection = PgConnection::connect(&$rig.direct).await.unwrap();
                $body
            }
        }
    };
}

impl SqlRig {
    pub(crate) async fn start(kind: Backend) -> Self {
        let database = fresh_database(kind).await;
        let direct = database.url.clone();
        Self::before(kind, direct, None, Some(database)).await
    }

    pub(crate) async fn start_private(kind: Backend) -> Self {
        let server = PrivateServer::start(kind).await;
        let direct = server.url().to_owned();
        Self::before(kind, direct, Some(server), None).await
    }

    async fn before(
        kind: Backend,
        direct: String,
        server: Option<PrivateServer>,
        database: Option<TestDatabase>,
    ) -> Self {
        let proxied = match kind {
            Backend::Sqlite => None,
            Backend::Mysql | Backend::Postgres => Some(Proxy::before(&direct).await),
        };
        let rig = Self {
            kind,
            direct,
            proxied,
            server,
            _database: database,
        };
        let limit = Duration::from_secs(10);
        let builder = SqlBackend::builder(&rig.direct).response_limit(limit);
        let backend = builder.connect_limit(limit).build().unwrap();
        backend.create_tables().await.unwrap();
        rig
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        let proxied = self.proxied.as_ref();
        &proxied.expect("SQLite has no connection").0
    }

    fn server(&self) -> &PrivateServer {
        self.server.as_ref().expect("a private server")
    }

    pub(crate) fn builder_of_backend(&self) -> SqlBuilder {
        SqlBackend::builder(&self.url())
    }

    /// The bytes of a request for this lock: it contains the name in hexadecimal.
    pub(crate) fn on_the_wire(&self, text: &str) -> Vec<u8> {
        match self.kind {
            Backend::Mysql | Backend::Postgres => {
                let digits = text.bytes().map(|byte| format!("{byte:02X}"));
                digits.collect::<String>().into_bytes()
            }
            Backend::Sqlite => text.into(),
        }
    }

    pub(crate) async fn number(&self, select: impl Into<String>) -> i64 {
        let select = trusted(select);
        with_connection!(self, connection => {
            let number = sqlx::query_scalar(select).fetch_one(&mut connection).await;
            // Do not count this connection among those of the locks.
            connection.close().await.unwrap();
            number.unwrap()
        })
    }

    /// The number of rows that a statement changes.
    pub(crate) async fn change(&self, statement: impl Into<String>) -> u64 {
        let statement = trusted(statement);
        with_connection!(self, connection => {
            let changed = connection.execute(statement).await.unwrap().rows_affected();
            connection.close().await.unwrap();
            changed
        })
    }

    /// Changes rows in a transaction that stays open.
    pub(crate) async fn begin(&self, statement: &str) -> OpenTransaction {
        let begin = match self.kind {
            // Otherwise it locks every row that it reads.
            Backend::Mysql => "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN",
            Backend::Postgres | Backend::Sqlite => "BEGIN",
        };
        let statement = trusted(format!("{begin}; {statement}"));
        with_connection!(self, connection => {
            connection.execute(sqlx::raw_sql(statement)).await.unwrap();
            OpenTransaction(Box::pin(async move {
                connection.execute("COMMIT").await.unwrap();
            }))
        })
    }

    pub(crate) async fn clock(&self) -> i64 {
        let select = match self.kind {
            Backend::Sqlite => "SELECT CAST(unixepoch('now', 'subsec') * 1000000 AS INTEGER)",
            Backend::Mysql => "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS SIGNED)",
            Backend::Postgres => "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
        };
        self.number(select).await
    }

    /// The number of statements that wait for a row on this private server.
    pub(crate) async fn blocked(&self) -> i64 {
        let count = match self.kind {
            // Its clients wait by asking again.
            Backend::Sqlite => return 0,
            // `innodb_trx` shows old contents to those that read it often.
            Backend::Mysql => {
                "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status
                WHERE variable_name = 'Innodb_row_lock_current_waits'"
            }
            Backend::Postgres => {
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            }
        };
        self.number(count).await
    }

    /// Creates a table with one row that only the holder of a lock may write.
    pub(crate) async fn create_account(&self) {
        let create = "CREATE TABLE account (
            id integer NOT NULL PRIMARY KEY, balance bigint NOT NULL,
            fence_token bigint NOT NULL DEFAULT 0, fence_source varchar(255) NOT NULL DEFAULT '')";
        self.change(create).await;
        self.change("INSERT INTO account (id, balance) VALUES (7, 0)")
            .await;
    }

    /// Writes the row, and returns the number of rows that this changed.
    pub(crate) async fn write_account(&self, guard: &LockGuard, balance: i64) -> u64 {
        macro_rules! write_with {
            ($database:ty, $connection:ty) => {{
                let mut connection = <$connection>::connect(&self.direct).await.unwrap();
                let mut update = QueryBuilder::<$database>::new("UPDATE account SET balance = ");
                update.push_bind(balance).push(", ");
                fence::push_set(&mut update, guard);
                update.push(" WHERE id = 7 AND ");
                fence::push_condition(&mut update, guard);
                let written = update.build().execute(&mut connection).await.unwrap();
                written.rows_affected()
            }};
        }
        match self.kind {
            Backend::Sqlite => write_with!(Sqlite, SqliteConnection),
            Backend::Mysql => write_with!(MySql, MySqlConnection),
            Backend::Postgres => write_with!(Postgres, PgConnection),
        }
    }

    /// The number of rows of locks, held or not.
    pub(crate) async fn rows(&self) -> i64 {
        self.number("SELECT count(*) FROM distributed_lock").await
    }

    /// The number of connections to this database, without that of the question.
    pub(crate) async fn connections(&self) -> i64 {
        match self.kind {
            Backend::Sqlite => 0,
            Backend::Mysql => {
                let count = "SELECT count(*) FROM information_schema.processlist
                    WHERE db = database() AND id <> connection_id()";
                self.number(count).await
            }
            Backend::Postgres => {
                let count = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                        AND backend_type = 'client backend'";
                self.number(count).await
            }
        }
    }
}

#[async_trait]
impl Rig for SqlRig {
    const LEASE: Duration = Duration::from_secs(2);
    const MOMENT: Duration = Duration::from_secs(1);
    const STEP: Duration = Duration::from_micros(100);

    type Backend = SqlBackend;
    type Clock = BootClock;

    fn backend(&self) -> SqlBackend {
        let builder = self.builder_of_backend();
        let builder = builder.response_limit(Duration::from_millis(500));
        builder.build().unwrap()
    }

    async fn left(&self) -> usize {
        let count = "SELECT count(*) FROM distributed_lock WHERE nonce <> ''";
        usize::try_from(self.number(count).await).unwrap()
    }
}

#[async_trait]
impl Served for SqlRig {
    fn url(&self) -> String {
        let proxied = self.proxied.as_ref();
        proxied.map_or(&self.direct, |(_, url)| url).clone()
    }

    async fn has_waiter(&self, name: &str) -> bool {
        let awaited = "SELECT count(*) FROM distributed_lock WHERE is_awaited AND name = ";
        self.number(format!("{awaited}'{name}'")).await == 1
    }
}

#[async_trait]
impl Faults for SqlRig {
    async fn take_away(&self, name: &str) {
        let delete = format!("DELETE FROM distributed_lock WHERE name = '{name}'");
        assert_eq!(self.change(delete).await, 1);
    }

    fn outsider(&self) -> SqlBackend {
        SqlBackend::new(&self.direct).unwrap()
    }

    fn proxies(&self) -> Vec<&Proxy> {
        vec![self.proxy()]
    }

    async fn lose_acquire_answer(&self, name: &str) {
        self.proxy().cut_after(&self.on_the_wire(name), 1);
    }

    fn servers(&self) -> Vec<&PrivateServer> {
        vec![self.server()]
    }
}
