//! SQLite, embedded: one writer connection, and readers beside it.
//!
//! Guarantees: WAL with `synchronous=FULL`, so that an acknowledged sale survives a power cut. Every
//! write begins with `BEGIN IMMEDIATE`, because a read transaction cannot become a writing one while
//! others write. `BEGIN IMMEDIATE` also locks every row.

use std::str::FromStr;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor, Sqlite, SqliteConnection};

use super::conditional_write::{ConditionalWrite, deducted};
use super::dialect::{Dialect, Statement, fetch, query};
use super::errors::{Inserted, before_commit};
use super::journal_sink::insert_entry;
use super::ledger_row::LedgerRow;
use super::migration;
use super::pool::{Pool, PooledConnection, Server, Transaction};
use super::statements::{self, Words};
use crate::{AttemptOutcome, Result};

impl Dialect for SqliteFile {
    const NAME: &'static str = "sqlite";

    const WORDS: Words = Words {
        begin: "BEGIN IMMEDIATE",
        begin_set_level: "BEGIN IMMEDIATE",
        begin_snapshot: "BEGIN",
        lock_sku: None,
        lock_rows: "",
        now: "unixepoch('now', 'subsec') * 1000",
        created_at: "created_at",
        integer: "integer",
        entry_time: "strftime('%Y-%m-%dT%H:%M:%fZ', $millis / 1000.0, 'unixepoch')",
        no_table: "",
    };

    fetch!(query::<Sqlite>);

    /// One transaction. There are no messages to save.
    async fn conditional_write(
        pool: &Pool<Self>,
        write: &ConditionalWrite<'_>,
    ) -> Result<Option<AttemptOutcome>> {
        let mut tx = pool.begin(Self::WORDS.begin).await?;
        write.send_on(&tx);
        let update = Statement::built(write.update("", Self::WORDS.now));
        let updated = tx.fetch(update, &write.values()).await;
        let updated: Vec<(i64,)> = updated.map_err(before_commit)?;
        let Some(&(available,)) = updated.first() else {
            tx.roll_back().await;
            return Ok(None);
        };
        let mut row = write.row.clone();
        row.available_after = available;
        Ok(Some(match tx.record_and_commit(&row).await? {
            Inserted::New => deducted(available),
            Inserted::Duplicate => AttemptOutcome::Duplicate,
        }))
    }

    /// One by one. A duplicate is skipped.
    async fn insert_entries(tx: &mut Transaction<Self>, rows: &[&LedgerRow]) -> sqlx::Result<()> {
        for row in rows {
            insert_entry(tx, row).await?;
        }
        Ok(())
    }

    /// None: each connection sets what matters when it is opened.
    async fn unsafe_settings(_: &mut PooledConnection<Self>) -> sqlx::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Whether the URL names an in-memory database: by sqlx's two names, or by SQLite's, the empty one.
fn is_in_memory(url: &str) -> bool {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    matches!(file, "" | ":memory:")
        || form_urlencoded::parse(parameters.as_bytes())
            .any(|(key, value)| key == "mode" && value == "memory")
}

fn options(url: &str) -> Result<SqliteConnectOptions, String> {
    let options = SqliteConnectOptions::from_str(url).map_err(|error| error.to_string())?;
    if is_in_memory(url) {
        return Err(
            "each connection to an in-memory SQLite database has a database of its own: \
             name a file, as in sqlite://stocklock.db"
                .to_owned(),
        );
    }
    Ok(options
        .create_if_missing(true)
        // A statement may wait a second for another writer. That needs no warning.
        .disable_statement_logging()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full))
}

/// The file, and how long its connections wait for locks of other processes.
#[derive(Debug, Clone)]
pub(crate) struct SqliteFile(SqliteConnectOptions);

impl SqliteFile {
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        Ok(Self(options(url)?))
    }

    /// The pool waits for the write lock, so that SQLite does not block a thread meanwhile.
    pub(crate) fn for_writer(&self) -> Self {
        Self(self.0.clone().busy_timeout(Duration::ZERO))
    }

    pub(crate) fn for_readers(&self, wait_limit: Duration) -> Self {
        Self(self.0.clone().busy_timeout(wait_limit))
    }
}

impl Server for SqliteFile {
    const EMBEDDED: bool = true;

    type Connection = SqliteConnection;

    async fn open(&self) -> sqlx::Result<SqliteConnection> {
        self.0.connect().await
    }

    async fn run(connection: &mut SqliteConnection, statement: &'static str) -> sqlx::Result<()> {
        connection.execute(statement).await.map(drop)
    }

    async fn read_clock(connection: &mut SqliteConnection) -> sqlx::Result<i64> {
        let clock = statements::clock(&Self::WORDS).text;
        sqlx::query_scalar(clock).fetch_one(connection).await
    }
}

/// Creates the file if necessary and brings its schema up to date.
///
/// SQLite has no lock that outlives a transaction, so one of two processes that start together may
/// fail. When it tries again, the other one is done.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?.busy_timeout(migration::LIMIT);
    let file = options.get_filename().display().to_string();
    let migrator = sqlx::migrate!("../../migrations/sqlite");
    migration::run(&options, migrator, &file, migration::is_transient_on_file)
        .await
        .map_err(|error| migration::explain_file(&error, &file))
}
