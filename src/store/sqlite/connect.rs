//! `SQLite`: how the file is opened, and how its schema is brought up to date.

use std::str::FromStr;

use sqlx::ConnectOptions;
use sqlx::migrate::MigrateError;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::store::migration;

pub(super) fn options(url: &str) -> Result<SqliteConnectOptions, String> {
    Ok(SqliteConnectOptions::from_str(url)
        .map_err(|error| error.to_string())?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full))
}

/// Creates the file if need be and brings its schema up to date.
///
/// `SQLite` has no lock that outlives a transaction, so of two processes that start at once one may
/// fail; by its next attempt the other one is done.
pub(in crate::store) async fn migrate(url: &str) -> Result<(), String> {
    let options = options(url)?.busy_timeout(migration::LIMIT);
    migration::until_settled(may_pass, || {
        let options = options.clone();
        async move {
            let mut connection = options.connect().await?;
            sqlx::migrate!("migrations/sqlite")
                .run_direct(None, &mut connection, false)
                .await?;
            Ok(())
        }
    })
    .await
    .map_err(|error| error.to_string())
}

/// Not where the schema is of another version's making.
fn may_pass(error: &MigrateError) -> bool {
    matches!(
        error,
        MigrateError::Execute(_) | MigrateError::ExecuteMigration(..)
    )
}
