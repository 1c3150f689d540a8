//! What the three SQL back ends' pools have in common.
//!
//! sqlx 0.9.0 can hand out a connection that is still inside a transaction whose `begin` was
//! abandoned; what is then acknowledged on it is never committed
//! (<https://github.com/transact-rs/sqlx/issues/4385>). So every pool rolls back on release.

use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::{Database, Executor, Pool, SqliteConnection, Transaction};
use tokio::time::Instant;

use super::StoreError;
use super::driver_error::{Verdict, classify};

/// How long bringing the schema up to date may take, other processes' turns included.
pub(super) const MIGRATION_LIMIT: Duration = Duration::from_secs(30);

/// Whether every connection that the pool may open is open and in use.
pub(super) fn is_busy<DB: Database>(pool: &Pool<DB>) -> bool {
    pool.size() >= pool.options().get_max_connections()
}

/// Ends a transaction that is not to be committed. Where even that fails, the connection is
/// broken: the pool drops it, and the server rolls back.
pub(super) async fn roll_back<DB: Database>(tx: Transaction<'static, DB>) {
    if let Err(error) = tx.rollback().await {
        tracing::debug!(%error, "rollback failed; the connection is dropped instead");
    }
}

/// On release: ends whatever transaction is still open, quietly where there is none.
pub(super) async fn roll_back_sqlite(connection: &mut SqliteConnection) -> sqlx::Result<bool> {
    match connection.execute("ROLLBACK").await {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.message().contains("no transaction") => Ok(true),
        Err(error) => Err(error),
    }
}

/// A row that was absent when it was read and is there now: another transaction was faster.
pub(super) fn conflict_if_duplicate(
    error: sqlx::Error,
    otherwise: impl FnOnce(sqlx::Error) -> StoreError,
) -> StoreError {
    if classify(&error) == Verdict::Duplicate {
        return StoreError::Conflict(Box::new(error));
    }
    otherwise(error)
}

/// Runs a migration again until it succeeds or the limit has passed.
pub(super) async fn migrate_until_settled<F>(migrate: impl Fn() -> F) -> Result<(), String>
where
    F: Future<Output = Result<(), MigrateError>>,
{
    let started = Instant::now();
    loop {
        match migrate().await {
            Ok(()) => return Ok(()),
            Err(error) if started.elapsed() > MIGRATION_LIMIT || !may_pass(&error) => {
                return Err(error.to_string());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Whether another attempt may succeed: not where the schema is of another version's making.
fn may_pass(error: &MigrateError) -> bool {
    matches!(
        error,
        MigrateError::Execute(_) | MigrateError::ExecuteMigration(..)
    )
}
