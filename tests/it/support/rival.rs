//! A test's own connection to the database of the service, and a transaction that locks its stock.

use std::time::Duration;

use sqlx::{Connection, MySqlConnection, PgConnection, SqliteConnection};
use stocklock_testkit::eventually;
use uuid::Uuid;

use super::services::Backend;

/// A connection that bypasses the stores.
pub(crate) enum Raw {
    Sqlite(SqliteConnection),
    Mysql(MySqlConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub(crate) async fn connect(backend: Backend, url: &str) -> Self {
        match backend {
            Backend::Sqlite => SqliteConnection::connect(url).await.map(Self::Sqlite),
            Backend::Mysql => MySqlConnection::connect(url).await.map(Self::Mysql),
            Backend::Postgres => PgConnection::connect(url).await.map(Self::Postgres),
        }
        .expect("the test can connect to the database")
    }

    pub(crate) async fn run(&mut self, statement: &'static str) -> Result<(), sqlx::Error> {
        let statement = sqlx::raw_sql(statement);
        match self {
            Self::Sqlite(connection) => statement.execute(connection).await.map(drop),
            Self::Mysql(connection) => statement.execute(connection).await.map(drop),
            Self::Postgres(connection) => statement.execute(connection).await.map(drop),
        }
    }

    /// Reads one value; `None` if there is no row.
    pub(crate) async fn text(&mut self, query: &'static str) -> Option<String> {
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(query).fetch_optional(connection).await,
            Self::Mysql(connection) => sqlx::query_scalar(query).fetch_optional(connection).await,
            Self::Postgres(connection) => {
                sqlx::query_scalar(query).fetch_optional(connection).await
            }
        }
        .expect("the query succeeds")
    }

    /// From now on, each statement on a row of stock takes 30 s. Not on SQLite.
    pub(crate) async fn slow_down_stock(&mut self) {
        let slow = match self {
            Self::Postgres(_) => {
                "ALTER TABLE stock RENAME TO quick;
                 CREATE VIEW stock AS SELECT * FROM quick WHERE pg_sleep(30) IS NOT NULL"
            }
            Self::Sqlite(_) | Self::Mysql(_) => {
                "RENAME TABLE stock TO quick;
                 CREATE VIEW stock AS SELECT * FROM quick WHERE sleep(30) = 0"
            }
        };
        self.run(slow)
            .await
            .expect("a view takes the table's place");
    }

    /// Begins a transaction that writes.
    pub(crate) async fn begin(&mut self) {
        let begin = match self {
            Self::Sqlite(_) => "BEGIN IMMEDIATE",
            Self::Mysql(_) | Self::Postgres(_) => "BEGIN",
        };
        self.run(begin).await.expect("a transaction can begin");
    }

    /// An open transaction that has recorded the key `K`.
    pub(crate) async fn recording_key(backend: Backend, url: &str) -> Self {
        let mut raw = Self::connect(backend, url).await;
        raw.begin().await;
        raw.record_key().await;
        raw
    }

    /// Inserts a movement with the key `K` of an anonymous caller.
    pub(crate) async fn record_key(&mut self) {
        self.record(Uuid::from_u128(1)).await;
    }

    /// The same, of this operation.
    pub(crate) async fn record(&mut self, operation: Uuid) {
        let operation = match self {
            Self::Sqlite(_) | Self::Mysql(_) => format!("x'{}'", operation.simple()),
            Self::Postgres(_) => format!("'{operation}'"),
        };
        let statement = format!(
            "INSERT INTO movement (operation_id, line, sku, warehouse, kind, delta, available_after,
                level_version, caller, idempotency_key)
             VALUES ({operation}, 0, 'raw', 'main', 'deducted', -1, 0, 2, 'anonymous', 'K')"
        );
        let inserted = self.run(statement.leak()).await;
        inserted.expect("a movement can be inserted");
    }
}

/// The URL of a database for a user whose password is the same word.
pub(crate) fn as_user(url: &str, user: &str) -> String {
    let mut url = reqwest::Url::parse(url).expect("a URL");
    url.set_username(user).expect("it has a host");
    url.set_password(Some(user)).expect("it has a host");
    url.into()
}

/// An open transaction that has locked rows of stock: every one, or those that the test names; on `SQLite`,
/// the database. It is rolled back when it is dropped.
pub(crate) struct Rival(Raw);

impl Rival {
    pub(crate) async fn holding_stock(backend: Backend, url: &str) -> Self {
        Self::holding(backend, url, "UPDATE stock SET held = held").await
    }

    /// The same with the rows that `lock` locks.
    pub(crate) async fn holding(backend: Backend, url: &str, lock: &'static str) -> Self {
        let mut raw = Raw::connect(backend, url).await;
        raw.begin().await;
        raw.run(lock).await.expect("the rows can be locked");
        Self(raw)
    }

    pub(crate) async fn let_go(mut self) {
        self.0.run("ROLLBACK").await.expect("it can be rolled back");
    }
}

/// Waits until a query finds a row.
pub(crate) async fn until_found(raw: &mut Raw, query: &'static str) {
    let is_found = async || raw.text(query).await.is_some();
    eventually(query, Duration::from_mins(1), is_found).await;
}

/// Returns when a session of the database at `url` waits for a lock.
pub(crate) async fn lock_is_waited_for(backend: Backend, url: &str) {
    let waiting = match backend {
        Backend::Sqlite => panic!("SQLite does not show which connections wait"),
        // InnoDB's own table of waits is a copy, which is renewed only if it was not read for a while. Only a
        // statement that waits for a lock takes this long.
        Backend::Mysql => {
            "SELECT command FROM information_schema.processlist
             WHERE db = database() AND id <> connection_id() AND coalesce(state, '') <> 'User lock'
                AND command IN ('Query', 'Execute') AND time_ms > 100"
        }
        Backend::Postgres => {
            "SELECT state FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
    };
    until_found(&mut Raw::connect(backend, url).await, waiting).await;
}
