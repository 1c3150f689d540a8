//! SQLite: opens the file, and brings its schema up to date.

use std::str::FromStr;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions, Executor, SqliteConnection};

use crate::sql::migration;
use crate::sql::pool::Server;

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
