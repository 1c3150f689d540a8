//! Bringing a schema up to date: again while that may help, within a bound, with one clear
//! sentence in the end.

use std::io;
use std::time::Duration;

use sqlx::migrate::MigrateError;
use tokio::time::Instant;
use tracing::info;

use super::driver_error::{Verdict, classify};

/// How long bringing the schema up to date may take, other processes' turns included.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The longest pause between two attempts; the first one is a hundredth of it.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs a migration of `database` again until it succeeds, fails for good, or the limit has passed.
///
/// Migrators are run by `run_direct`: with `run`, the compiler cannot see that the future is
/// `Send`, as callers need it to be.
pub(super) async fn until_settled<F>(
    database: &str,
    may_pass: impl Fn(&MigrateError) -> bool,
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
            Err(error) if may_pass(&error) && started.elapsed() + pause < LIMIT => {
                if seen.is_none() {
                    info!(%error, "waiting for the database at {database}");
                }
                seen = Some(error);
                tokio::time::sleep(pause).await;
                pause = PAUSE.min(pause * 2);
            }
            settled => return settled,
        }
    }
}

/// Whether a server may answer otherwise soon: it is about to start, it is full, it went away, others
/// held a lock. Not where it does not know us or the database, nor where nobody knows its name.
pub(super) fn may_pass_on_a_server(error: &MigrateError) -> bool {
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

/// Whether another process is, or was, at the same file. Not where the file cannot be opened, nor
/// where the schema is of another version's making.
pub(super) fn may_pass_on_a_file(error: &MigrateError) -> bool {
    driver_error(error).is_some_and(|error| {
        matches!(
            classify(error),
            // Busy, locked; and sqlx's own record of a migration that the other one has made.
            Verdict::RetryTransaction | Verdict::RollBackThenRetry | Verdict::Duplicate
        ) || error
            .as_database_error()
            .is_some_and(|error| is_made_already(error.message()))
    })
}

/// Whether `SQLite` refuses to make a table, an index or a column that the other one has made.
fn is_made_already(message: &str) -> bool {
    ["already exists", "duplicate column name"]
        .iter()
        .any(|known| message.contains(known))
}

/// One sentence on what failed with `file`.
pub(super) fn explain_file(error: &MigrateError, file: &str) -> String {
    match driver_error(error) {
        Some(cause) if classify(cause) == Verdict::Unavailable => format!(
            "{file}: {}; is there such a directory, with room in it, and may it be written to?",
            cause
                .as_database_error()
                .map_or_else(|| cause.to_string(), |error| error.message().to_owned())
        ),
        _ => format!("{file}: {error}"),
    }
}

/// One sentence on what failed at `server`, without anybody's password.
pub(super) fn explain(error: &MigrateError, server: &str, create_database: &str) -> String {
    let Some(cause) = driver_error(error) else {
        return error.to_string();
    };
    match cause {
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
            format!("nothing listens at {server} (connection refused): is the database started?")
        }
        sqlx::Error::Io(io) => format!("{server} does not answer: {io}"),
        sqlx::Error::PoolTimedOut => format!(
            "{server} did not bring the schema up to date within {} s; another process may be \
             at it, or hold a lock on its tables",
            LIMIT.as_secs()
        ),
        sqlx::Error::Database(database) => match database.code().as_deref() {
            // MySQL's SQLSTATE, PostgreSQL's.
            Some("42000" | "3D000") if is_unknown_database(cause) => format!(
                "{}; create it by `{create_database}`",
                database.message().trim_end_matches('.')
            ),
            Some("28000" | "28P01") => format!("{server} denies access: {}", database.message()),
            _ => error.to_string(),
        },
        _ => error.to_string(),
    }
}

fn is_unknown_database(error: &sqlx::Error) -> bool {
    use sqlx::mysql::MySqlDatabaseError;
    let Some(database) = error.as_database_error() else {
        return false;
    };
    match database.try_downcast_ref::<MySqlDatabaseError>() {
        Some(mysql) => mysql.number() == 1049,
        None => database.code().as_deref() == Some("3D000"),
    }
}

fn driver_error(error: &MigrateError) -> Option<&sqlx::Error> {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
        _ => None,
    }
}
