//! Brings a schema up to date. Retries within a bound while that may help; then reports one sentence.

use std::io;
use std::time::Duration;

use sqlx::migrate::{Migrate, MigrateError, Migrator};
use sqlx::mysql::MySqlDatabaseError;
use sqlx::{ConnectOptions, Connection};
use tokio::time::Instant;
use tracing::info;

use super::errors::{Verdict, classify};

/// How long a migration may take, including the turns of other processes.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The longest pause between two attempts; the first one is a hundredth of it.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs all migrations on one connection. Tries again like [`run_until_done`].
pub(super) async fn run<C: Connection + Migrate>(
    options: &impl ConnectOptions<Connection = C>,
    migrator: Migrator,
    database: &str,
    is_transient: impl Fn(&MigrateError) -> bool,
) -> Result<(), MigrateError> {
    let migrator = &migrator;
    let attempt = || async move {
        let mut connection = options.connect().await?;
        // With `run`, the compiler cannot prove that the future is `Send`.
        migrator.run_direct(None, &mut connection, false).await?;
        Ok(connection.close().await?)
    };
    run_until_done(database, is_transient, attempt).await
}

/// Runs a migration of `database` until it succeeds, fails with an error that a retry cannot help, or
/// the limit has passed.
pub(super) async fn run_until_done<F>(
    database: &str,
    is_transient: impl Fn(&MigrateError) -> bool,
    migrate: impl Fn() -> F,
) -> Result<(), MigrateError>
where
    F: Future<Output = Result<(), MigrateError>>,
{
    let started = Instant::now();
    let mut pause = PAUSE / 100;
    let mut seen = None;
    loop {
        let left = LIMIT.saturating_sub(started.elapsed());
        let Ok(result) = tokio::time::timeout(left, migrate()).await else {
            let timed_out = MigrateError::Execute(sqlx::Error::PoolTimedOut);
            return Err(seen.unwrap_or(timed_out));
        };
        match result {
            Err(error) if is_transient(&error) && started.elapsed() + pause < LIMIT => {
                if seen.is_none() {
                    info!(%error, "waiting for the database at {database}");
                }
                seen = Some(error);
                tokio::time::sleep(pause).await;
                pause = PAUSE.min(pause * 2);
            }
            result => return result,
        }
    }
}

/// Whether a server may accept soon: it is starting, it is full, the connection was lost, or another
/// session held a lock. Not if it denies access, or its name or the database is unknown.
pub(super) fn is_transient_on_server(error: &MigrateError) -> bool {
    driver_error(error).is_some_and(|error| match error {
        sqlx::Error::Io(io) => matches!(
            io.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        ),
        sqlx::Error::Database(_) => matches!(
            classify(error),
            Verdict::RetryTransaction
                | Verdict::RollBackThenRetry
                | Verdict::ConnectionLost
                | Verdict::Unavailable
        ),
        _ => false,
    })
}

/// Whether another process is migrating the same file, or has just done so. Not if the file cannot be
/// opened, or has the schema of another version.
pub(super) fn is_transient_on_file(error: &MigrateError) -> bool {
    driver_error(error).is_some_and(|error| {
        matches!(
            classify(error),
            // Busy, locked; or sqlx's record of a migration that the other process has made.
            Verdict::RetryTransaction | Verdict::RollBackThenRetry | Verdict::Duplicate
        ) || error.as_database_error().is_some_and(|error| {
            // SQLite refuses to create what the other process has created.
            let known = ["already exists", "duplicate column name"];
            known.iter().any(|known| error.message().contains(known))
        })
    })
}

/// One sentence on what failed with `file`.
pub(super) fn explain_file(error: &MigrateError, file: &str) -> String {
    match driver_error(error) {
        Some(cause @ sqlx::Error::Database(database))
            if classify(cause) == Verdict::Unavailable =>
        {
            let message = database.message();
            format!(
                "{file}: {message}; is there such a directory, with room in it, and may it be \
                 written to?"
            )
        }
        _ => format!("{file}: {error}"),
    }
}

/// One sentence on what failed at `server`, without a password.
pub(super) fn explain(error: &MigrateError, server: &str, create_database: &str) -> String {
    let Some(cause) = driver_error(error) else {
        return error.to_string();
    };
    match cause {
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
            format!("nothing listens at {server} (connection refused): is the database started?")
        }
        sqlx::Error::Io(io) => format!("{server} does not answer: {io}"),
        sqlx::Error::Configuration(problem) => format!("{server}: {problem}"),
        sqlx::Error::PoolTimedOut => format!(
            "{server} did not bring the schema up to date within {} s; another process may be \
             migrating it, or hold a lock on its tables",
            LIMIT.as_secs()
        ),
        sqlx::Error::Database(database) => {
            let message = database.message();
            let mysql = database.try_downcast_ref::<MySqlDatabaseError>();
            match (
                mysql.map(MySqlDatabaseError::number),
                database.code().as_deref(),
            ) {
                (Some(1049), _) | (None, Some("3D000")) => {
                    let message = message.trim_end_matches('.');
                    format!("{message}; create it by `{create_database}`")
                }
                (_, Some("28000" | "28P01")) => format!("{server} denies access: {message}"),
                _ => error.to_string(),
            }
        }
        _ => error.to_string(),
    }
}

fn driver_error(error: &MigrateError) -> Option<&sqlx::Error> {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
        _ => None,
    }
}
