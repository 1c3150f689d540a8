//! The SQL stores: SQLite, MariaDB/MySQL and PostgreSQL.
//!
//! Each transaction is written once: what operations need is read in `snapshot`, what was planned is
//! written in `write`, and `attempts` combines them. A [`Dialect`] supplies the few messages that
//! differ. The statements for stock and ledger stand in `read.sql` and `write.sql`, and in two
//! files of each dialect. On a server, transactions run at READ COMMITTED, set explicitly, so that no
//! decision is based on a snapshot that is older than the row locks. Two kinds of transactions that write nothing are
//! exceptions: an audit reads one snapshot (REPEATABLE READ), and on MariaDB and MySQL a look-up finds a
//! key that another transaction is recording (READ UNCOMMITTED). Retries of whole operations are the
//! caller's ([`stocklock_core::deduct`]).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::migrate::Migration;
use tokio::sync::Mutex;

use crate::{Result, StoreError, StoreOptions};
use stocklock_core::ports::{DeductionStore, OperationStore};
use stocklock_core::stock::{Audit, LedgerPage, MovementFilter, Sku, StockLevel, Warehouse};

mod api_keys;
mod attempts;
mod audit;
mod checkpoints;
mod conditional_write;
mod dialect;
mod errors;
mod feed;
mod flows;
mod holds;
mod hosts;
mod ledger_pages;
mod ledger_row;
mod migration;
mod mysql;
mod one_line;
mod operations;
mod pool;
mod postgres;
mod reads;
mod rows;
mod snapshot;
mod sqlite;
mod standby;
mod statement;
mod statements;
mod webhooks;
mod write;

pub use api_keys::{ApiKeys, KeyList};
pub use checkpoints::Checkpoints;
use dialect::Dialect;
use errors::{is_stale, unavailable};
use feed::Changed;
pub use feed::Feed;
pub use hosts::urls_of;
use mysql::MySqlServer;
pub use operations::OperationQueries;
pub use pool::commit_warnings;
use pool::{Pool, ServerHealth};
use postgres::PostgresServer;
use sqlite::SqliteFile;
pub use webhooks::{Webhook, Webhooks};

/// How many statements of a read may each take as long as the server allows.
const READ: u32 = 1;

/// The same for a write. Two of its statements may wait for a lock: for the row, and for another
/// transaction that is recording the same key. The others find everything locked.
const WRITE: u32 = 2;

/// Connections of a server for reads of levels, each of which takes about a millisecond.
const READERS: u32 = 4;

/// Connections for audits and pages of the ledger.
const LEDGER_READERS: u32 = 2;

/// How long a connection may be idle.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Connections of a store besides the [`StoreOptions::pool_size`]: those, and one for readiness.
pub const OTHER_CONNECTIONS: u32 = READERS + LEDGER_READERS + 1;

/// Changes of levels, and reads of pages, sums and settings, in one SQL database.
#[async_trait]
pub trait LedgerQueries: OperationStore {
    /// All levels of one SKU, in warehouse order.
    async fn levels_of(&self, sku: &Sku) -> Result<Vec<StockLevel>>;

    /// At most `limit` levels of all SKUs in (SKU, warehouse) order, starting after `after`, which need not
    /// exist.
    async fn levels(&self, after: (&str, &str), limit: u32) -> Result<Vec<StockLevel>>;

    /// The levels among these that exist, in any order, from one statement.
    async fn levels_among(&self, names: &[(Sku, Warehouse)]) -> Result<Vec<StockLevel>>;

    /// A page of the ledger of one SKU, newest movement first.
    async fn movements(&self, filter: &MovementFilter) -> Result<LedgerPage>;

    /// Level and ledger of each warehouse of the SKU, from one snapshot.
    async fn audit(&self, sku: &Sku) -> Result<Vec<Audit>>;

    /// The database: `sqlite`, `mysql` or `postgres`.
    fn backend(&self) -> &'static str;

    /// Asks the database, on a connection that no sale uses, whether it accepts writes.
    async fn check_writable(&self) -> Result<()>;

    /// Settings of the server under which an acknowledged sale can be lost, or that allow fewer connections
    /// than this store may open: one sentence each.
    async fn unsafe_settings(&self) -> Result<Vec<String>>;

    /// Closes connections to a server that have not been used for a while: other replicas may need them.
    /// The one for readiness stays.
    async fn close_idle(&self);

    /// Closes idle connections now, and the others when they come back.
    async fn close(&self);
}

/// All that a SQL database does for stock and ledger.
#[async_trait]
pub trait Store:
    DeductionStore + LedgerQueries + OperationQueries + Checkpoints + ApiKeys + Feed + Webhooks
{
    /// The identity of this ledger, created with its schema.
    async fn ledger_id(&self) -> Result<String>;
}

/// Stock in one SQL database.
#[derive(Debug)]
pub(crate) struct SqlStore<D: Dialect> {
    /// For writes, and for what they look up. SQLite has one.
    writers: Pool<D>,
    /// For reads: a flood of them must not stop sales.
    readers: Pool<D>,
    /// For audits and pages of the ledger: they take longer than other reads.
    ledger_readers: Pool<D>,
    /// One connection for readiness and API keys: their questions must not queue behind sales.
    probe: Pool<D>,
    /// SKU and warehouse of the last level that the background task for checkpoints has looked at; empty at
    /// the start of a round.
    checkpointed: Mutex<(String, String)>,
    /// For the background task that publishes events.
    changed: Changed,
    /// The synchronous standby, if there is one, has the feed up to this row.
    feed_at_standby: tokio::sync::Mutex<i64>,
    health: Arc<ServerHealth>,
}

impl<D: Dialect> SqlStore<D> {
    /// The connections on which a write looks something up. On SQLite, no look-up may wait for the
    /// writer.
    fn lookups(&self) -> &Pool<D> {
        if D::EMBEDDED {
            &self.readers
        } else {
            &self.writers
        }
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

/// Repeats a read if what its connection had prepared was out of date. By then, the connections that were
/// open are replaced. The callers of writes repeat those.
async fn repeated_if_stale<T, F>(read: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    match read().await {
        Err(error) if is_stale(&error) => read().await,
        answer => answer,
    }
}

/// A store with these connections for writes, and `readers` connections besides those of every store.
fn store<D: Dialect>(
    writers: Pool<D>,
    (reader, readers): (D, u32),
    health: Arc<ServerHealth>,
) -> Arc<dyn Store> {
    Arc::new(SqlStore {
        writers,
        readers: Pool::new(reader.clone(), readers, &health),
        ledger_readers: Pool::new(reader.clone(), LEDGER_READERS, &health),
        probe: Pool::new(reader, 1, &health),
        checkpointed: Mutex::default(),
        changed: Changed::default(),
        feed_at_standby: tokio::sync::Mutex::default(),
        health,
    })
}

/// A store on a server, which can have many writers. The connections of `prompt` do not wait for rows.
fn on_server<D: Dialect>(server: D, prompt: D, options: &StoreOptions) -> Arc<dyn Store> {
    let health = ServerHealth::new(options.wait_limit, D::EMBEDDED);
    let writers = Pool::for_writes(server.clone(), prompt, options.pool_size, &health);
    store(writers, (server, READERS), health)
}

/// Opens the store that the URL's scheme names. Connections are opened when first needed.
///
/// # Errors
/// A sentence that says what is wrong with the URL, without its password.
pub fn connect(url: &str, options: &StoreOptions) -> Result<Arc<dyn Store>, String> {
    match scheme(url) {
        "sqlite" => {
            let file = SqliteFile::at(url)?;
            let health = ServerHealth::new(options.wait_limit, true);
            let writer = Pool::new(file.for_writer(), 1, &health);
            let readers = (file.for_readers(options.wait_limit), options.pool_size);
            Ok(store(writer, readers, health))
        }
        "mysql" | "mariadb" => {
            let server = MySqlServer::at(url, options)?;
            Ok(on_server(server.clone(), server.prompt(), options))
        }
        "postgres" | "postgresql" => {
            let server = PostgresServer::at(url, options)?;
            Ok(on_server(server.clone(), server.prompt(), options))
        }
        other => Err(unknown_scheme(other)),
    }
}

/// Checks the server, and brings the schema of the database at `url` up to date while replicas sell.
/// Several processes may do so at once. A migration may take any time; a server that does not answer
/// is tried for 30 s.
///
/// # Errors
/// A sentence that says what failed, or which settings of the server must be changed, without the
/// URL's password.
#[must_use]
pub fn migrate(url: &str) -> BoxFuture<'_, Result<(), String>> {
    migrate_with(url, &[])
}

/// The same, with migrations of a later release. For tests of upgrades.
///
/// # Errors
/// The same.
#[doc(hidden)]
#[must_use]
pub fn migrate_with<'a>(url: &'a str, later: &'a [Migration]) -> BoxFuture<'a, Result<(), String>> {
    // Boxed, so that callers do not compile it again.
    Box::pin(async move {
        match scheme(url) {
            "sqlite" => migration::run(&SqliteFile::for_migration(url)?, later).await,
            "mysql" | "mariadb" => migration::run(&MySqlServer::for_migration(url)?, later).await,
            "postgres" | "postgresql" => {
                migration::run(&PostgresServer::for_migration(url)?, later).await
            }
            other => Err(unknown_scheme(other)),
        }
    })
}

fn scheme(url: &str) -> &str {
    url.split_once(':').map_or("", |(scheme, _)| scheme)
}

fn unknown_scheme(scheme: &str) -> String {
    format!("`{scheme}:` is not a supported database; use sqlite:, mysql:, mariadb: or postgres:")
}
