//! How the file's connections are waited for, and how transactions on them end.

use sqlx::pool::PoolConnection;
use sqlx::{Connection, Executor, Sqlite, SqliteConnection, SqlitePool, Transaction};

use crate::StoreError;
use crate::driver_error::{Verdict, classify, in_commit};
use crate::pool::failed;

pub(super) async fn commit(tx: Transaction<'static, Sqlite>) -> Result<(), StoreError> {
    tx.commit().await.map_err(in_commit)
}

/// Ends a transaction that is not to be committed. Where even that fails, the pool drops the
/// connection.
pub(super) async fn roll_back(tx: Transaction<'static, Sqlite>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "rollback failed; the connection is dropped instead");
    }
}

/// On release: ends whatever transaction is still open, quietly where there is none. (sqlx 0.9.0
/// can hand out a connection that is still inside a transaction whose `begin` was abandoned; see
/// [`crate::pool`].)
pub(super) async fn end_transaction(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    match connection.execute("ROLLBACK").await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.message().contains("no transaction") => Ok(true),
        Err(error) => Err(error),
    }
}

/// What an error of a pool means. There is no server that could be away, so where all connections
/// are in use, nothing else can have been waited for.
pub(super) fn failed_in(pool: &SqlitePool, error: sqlx::Error) -> StoreError {
    match classify(&error) {
        Verdict::PoolTimedOut if is_busy(pool) => StoreError::Exhausted,
        _ => failed(error),
    }
}

/// Whether every connection that the pool may open is open and in use.
fn is_busy(pool: &SqlitePool) -> bool {
    pool.size() >= pool.options().get_max_connections()
}

/// Asks the file whether it can be read, on a pool that no sale uses.
pub(super) async fn ping(probe: &SqlitePool) -> Result<(), StoreError> {
    let connection: Result<PoolConnection<Sqlite>, _> = probe.acquire().await;
    let mut connection = connection.map_err(|error| failed_in(probe, error))?;
    connection.ping().await.map_err(failed)
}
