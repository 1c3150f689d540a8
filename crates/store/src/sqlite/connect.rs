//! `SQLite`: how the file is opened, and how its schema is brought up to date.

use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use super::transaction;
use crate::{StoreOptions, migration};

/// By the two names that sqlx has for it, and by `SQLite`'s own: no name.
fn is_in_memory(url: &str) -> bool {
    let rest = url.strip_prefix("sqlite:").unwrap_or(url);
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    matches!(file, "" | ":memory:")
        || form_urlencoded::parse(parameters.as_bytes())
            .any(|(key, value)| key == "mode" && value == "memory")
}

pub(super) fn options(url: &str) -> Result<SqliteConnectOptions, String> {
    let options = SqliteConnectOptions::from_str(url).map_err(|error| error.to_string())?;
    if is_in_memory(url) {
        return Err(
            "an in-memory SQLite database ends with each connection, and no two see the same: \
             name a file, as in sqlite://stocklock.db"
                .to_owned(),
        );
    }
    Ok(options
        .create_if_missing(true)
        // A statement may wait a second for others: that is counted, and no warning each time.
        .disable_statement_logging()
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full))
}

/// What the writer's pool and the readers' have in common.
pub(super) fn pool(size: u32, store: &StoreOptions) -> SqlitePoolOptions {
    SqlitePoolOptions::new()
        .max_connections(size)
        .acquire_timeout(store.wait_limit)
        .test_before_acquire(false)
        .after_release(|connection, _| Box::pin(transaction::end_transaction(connection)))
}

/// Creates the file if need be and brings its schema up to date.
///
/// `SQLite` has no lock that outlives a transaction, so of two processes that start at once one may
/// fail; by its next attempt the other one is done.
pub(crate) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?.busy_timeout(migration::LIMIT);
    let file = options.get_filename().display().to_string();
    migration::until_settled(&file, migration::may_pass_on_a_file, || {
        let options = options.clone();
        async move {
            let mut connection = options.connect().await?;
            sqlx::migrate!("../../migrations/sqlite")
                .run_direct(None, &mut connection, false)
                .await?;
            Ok(())
        }
    })
    .await
    .map_err(|error| migration::explain_file(&error, &file))
}
