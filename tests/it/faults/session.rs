//! A session of a test with the database, without the service: it locks rows and sees whether
//! another session has a transaction open.
//!
//! Every statement is restricted to this session's database, because tests share the server.

use std::time::Duration;

use tokio::time::sleep;

use crate::store_contract::fixture::Raw;
use crate::support::services::Backend;

const MYSQL_OPEN: &str = "SELECT trx_state FROM information_schema.innodb_trx
    JOIN information_schema.processlist ON id = trx_mysql_thread_id
    WHERE db = database() AND id <> connection_id()";

const POSTGRES_OPEN: &str = "SELECT state FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL";

/// `InnoDB` refreshes its table of transactions only if it was not read for 100 ms.
const MYSQL_REFRESHES_AFTER: Duration = Duration::from_millis(110);

/// A reader at a time on the whole server, or the table would never be refreshed.
const MYSQL_BECOME_READER: &str = "SELECT CAST(get_lock('stocklock-test:innodb_trx', 60) AS CHAR)";
const MYSQL_END_READING: &str = "DO release_lock('stocklock-test:innodb_trx')";

const LOCK_ALL: &str = "BEGIN; SELECT on_hand FROM stock FOR UPDATE NOWAIT";
const LOCK_FILE: &str = "PRAGMA busy_timeout = 0; BEGIN IMMEDIATE";
const LOCK_HOT: &str = "BEGIN; SELECT on_hand FROM stock WHERE sku = 'hot' FOR UPDATE NOWAIT";

pub(crate) struct Session {
    backend: Backend,
    raw: Raw,
}

impl Session {
    pub(crate) async fn open(backend: Backend, url: &str) -> Self {
        let raw = Raw::connect(backend, url).await;
        Self { backend, raw }
    }

    /// The state of another session's open transaction, if there is one. SQLite cannot answer that;
    /// there, [`Self::try_lock`] shows it.
    pub(crate) async fn open_transaction(&mut self) -> Option<String> {
        match self.backend {
            Backend::Sqlite => None,
            Backend::Mysql => {
                let reading = self.raw.text(MYSQL_BECOME_READER).await;
                assert_eq!(reading.as_deref(), Some("1"), "other readers take too long");
                sleep(MYSQL_REFRESHES_AFTER).await;
                let open = self.raw.text(MYSQL_OPEN).await;
                let ended = self.raw.run(MYSQL_END_READING).await;
                ended.expect("the named lock is released");
                open
            }
            Backend::Postgres => self.raw.text(POSTGRES_OPEN).await,
        }
    }

    /// Locks every level, without waiting; returns whether that succeeded. Call [`Self::unlock`]
    /// afterwards in either case.
    pub(super) async fn try_lock(&mut self) -> bool {
        let lock = match self.backend {
            Backend::Sqlite => LOCK_FILE,
            Backend::Mysql | Backend::Postgres => LOCK_ALL,
        };
        self.raw.run(lock).await.is_ok()
    }

    /// The same for the SKU `hot` only.
    pub(super) async fn try_lock_hot(&mut self) -> bool {
        self.raw.run(LOCK_HOT).await.is_ok()
    }

    pub(super) async fn unlock(&mut self) {
        // An error means that no transaction is open: SQLite had refused to begin it.
        let _ = self.raw.run("ROLLBACK").await;
    }
}
