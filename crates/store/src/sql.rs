//! The SQL stores: SQLite, MariaDB/MySQL and PostgreSQL.
//!
//! Each transaction is written once, in `flows`, `reads` and `journal_sink`. A [`Dialect`] supplies
//! the statements and the few operations that differ. READ COMMITTED everywhere, set explicitly, so
//! that no decision is based on a snapshot that is older than the row locks. Retries of whole
//! operations are the caller's ([`stocklock_core::deduct`]).

use std::sync::Arc;

use async_trait::async_trait;

use crate::{Result, StoreError, StoreOptions};
use stocklock_core::ports::{DeductionStore, LevelStore};
use stocklock_core::stock::{Audit, LevelCursor, Movement, MovementFilter, Sku, StockLevel};

mod conditional_write;
mod dialect;
mod errors;
mod flows;
mod journal_sink;
pub(crate) mod ledger_row;
pub(crate) mod level_change;
mod migration;
mod mysql;
mod pool;
mod postgres;
mod reads;
pub(crate) mod rows;
mod sqlite;
mod statements;

use dialect::Dialect;
use errors::unavailable;
pub(crate) use journal_sink::JournalSink;
use mysql::MySqlServer;
use pool::{Pool, ServerHealth, Transaction};
use postgres::PostgresServer;
use sqlite::SqliteFile;

/// How many statements of a read may each take as long as the server allows.
const READ: u32 = 1;

/// The same for a write. Two of its statements may wait for a lock: for the row, and for another
/// transaction that is recording the same key. The others find everything locked.
const WRITE: u32 = 2;

/// Changes of levels, and reads of pages, sums and settings, in one SQL database.
#[async_trait]
pub trait LedgerQueries: LevelStore {
    /// All levels of one SKU, in warehouse order.
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>>;

    /// At most `limit` levels of all SKUs in (SKU, warehouse) order, starting after `after`.
    async fn levels(&self, after: Option<&LevelCursor>, limit: u32) -> Result<Vec<StockLevel>>;

    /// The ledger of one SKU, newest operation first.
    async fn movements(&self, filter: &MovementFilter) -> Result<Vec<Movement>>;

    /// Counter and ledger of each warehouse of the SKU, from one snapshot.
    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>>;

    /// The database: `sqlite`, `mysql` or `postgres`.
    fn backend(&self) -> &'static str;

    /// Makes one cheap round trip on a connection that no sale uses.
    async fn ping(&self) -> Result<()>;

    /// Settings of the server under which an acknowledged sale can be lost: one sentence each.
    async fn unsafe_settings(&self) -> Result<Vec<String>>;

    /// Closes idle connections now, and the others when they come back.
    async fn close(&self);
}

/// All that a SQL store does. Any [`SqlStore`].
pub(crate) trait SqlBackend: DeductionStore + LedgerQueries + JournalSink {}

impl<D: Dialect> SqlBackend for SqlStore<D> {}

/// Stock in one SQL database.
#[derive(Debug)]
pub(crate) struct SqlStore<D: Dialect> {
    writers: Arc<Pool<D>>,
    /// The same connections as `writers`, except for SQLite, which has one writer.
    readers: Arc<Pool<D>>,
    /// One connection for readiness: its question must not queue behind sales.
    probe: Pool<D>,
    health: Arc<ServerHealth>,
}

impl<D: Dialect> SqlStore<D> {
    async fn begin(&self, statement: &'static str) -> Result<Transaction<D>> {
        self.writers.begin(statement).await
    }

    /// Bounds a read of `statements` that may each take as long as the server allows. If the server
    /// does not answer, it is not available.
    async fn read<T>(
        &self,
        statements: u32,
        reading: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let read = self.health.bounded(statements, reading).await;
        read.unwrap_or_else(|silence| Err(unavailable(silence)))
    }

    /// Bounds a write. If the server does not answer, COMMIT may have reached it.
    async fn write<T>(&self, writing: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let written = self.health.bounded(WRITE, writing).await;
        written.unwrap_or_else(|silence| Err(StoreError::outcome_unknown(silence)))
    }
}

/// A store whose writers and readers share one pool, unless there is a `writer`. That has one
/// connection, for which the writers of this process queue.
fn store<D: Dialect>(server: D, writer: Option<D>, options: &StoreOptions) -> Arc<dyn SqlBackend> {
    let health = ServerHealth::new(options.wait_limit, D::EMBEDDED);
    let probe = Pool::new(server.clone(), 1, &health);
    let readers = Arc::new(Pool::new(server, options.pool_size, &health));
    let writers = match writer {
        Some(writer) => Arc::new(Pool::new(writer, 1, &health)),
        None => Arc::clone(&readers),
    };
    Arc::new(SqlStore {
        writers,
        readers,
        probe,
        health,
    })
}

/// Opens the store that the URL's scheme names. Connections are opened when first needed.
///
/// # Errors
/// A sentence that says what is wrong with the URL, without its password.
pub(crate) fn open(url: &str, options: &StoreOptions) -> Result<Arc<dyn SqlBackend>, String> {
    match scheme(url) {
        "sqlite" => {
            let file = SqliteFile::at(url)?;
            let reader = file.for_readers(options.wait_limit);
            Ok(store(reader, Some(file.for_writer()), options))
        }
        "mysql" | "mariadb" => Ok(store(MySqlServer::at(url, options)?, None, options)),
        "postgres" | "postgresql" => Ok(store(PostgresServer::at(url, options)?, None, options)),
        other => Err(unknown_scheme(other)),
    }
}

/// Brings the schema of the database at `url` up to date. Several processes may do so at once.
///
/// # Errors
/// A sentence that says what failed, without the URL's password.
pub async fn migrate(url: &str) -> Result<(), String> {
    match scheme(url) {
        "sqlite" => sqlite::migrate(url).await,
        "mysql" | "mariadb" => mysql::migrate(url).await,
        "postgres" | "postgresql" => postgres::migrate(url).await,
        other => Err(unknown_scheme(other)),
    }
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown_scheme(scheme: &str) -> String {
    format!("`{scheme}:` is not a supported database; use sqlite:, mysql:, mariadb: or postgres:")
}
