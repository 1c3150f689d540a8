//! What an error of a migration means: whether a retry may help, and one sentence for the operator.

use std::fmt::Display;
use std::io;

use sqlx::migrate::MigrateError;
use sqlx::mysql::MySqlDatabaseError;

use super::{LIMIT, Verdict, classify};

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
        sqlx::Error::PoolTimedOut => true,
        sqlx::Error::Database(_) => matches!(
            classify(error),
            Verdict::RetryTransaction
                | Verdict::RollBackThenRetry
                | Verdict::ConnectionLost
                | Verdict::Unavailable
                | Verdict::Full
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

/// Whether a statement gave up waiting for a lock, or was aborted because of another session's lock.
pub(in crate::sql) fn waited_for_lock(error: &MigrateError) -> bool {
    driver_error(error).is_some_and(|error| {
        let verdict = classify(error);
        matches!(
            verdict,
            Verdict::RetryTransaction | Verdict::RollBackThenRetry
        )
    })
}

/// Whether the database has no record of migrations.
pub(in crate::sql) fn is_missing_table(error: &MigrateError) -> bool {
    let error = driver_error(error).and_then(sqlx::Error::as_database_error);
    error.is_some_and(|error| {
        // PostgreSQL, MariaDB and MySQL; SQLite has no code for it.
        matches!(error.code().as_deref(), Some("42P01" | "42S02"))
            || error.message().starts_with("no such table")
    })
}

/// One sentence on what failed with `file`.
pub(in crate::sql) fn explain_file(error: &MigrateError, file: &str) -> String {
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
        _ => match of_an_earlier_build(error) {
            Some(advice) => format!("{file}: {advice}"),
            None => format!("{file}: {error}"),
        },
    }
}

/// Advice on the database of a build before the first release, whose first migration was another one.
fn of_an_earlier_build(error: &MigrateError) -> Option<&'static str> {
    matches!(error, MigrateError::VersionMismatch(1)).then_some(
        "the database was created by a build before 0.3.0, the first release, and cannot be upgraded: \
         export what you need, and start with an empty database",
    )
}

/// One sentence on what failed at `server`, without a password.
pub(in crate::sql) fn explain_server(
    error: &MigrateError,
    server: &str,
    create_database: &str,
) -> String {
    let Some(cause) = driver_error(error) else {
        let advice = of_an_earlier_build(error);
        return advice.map_or_else(|| error.to_string(), str::to_owned);
    };
    match cause {
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => {
            format!("nothing listens at {server} (connection refused): is the database started?")
        }
        // The driver reports a certificate that it refuses as invalid data.
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::InvalidData => untrusted(server, io),
        sqlx::Error::Tls(tls) => untrusted(server, tls),
        sqlx::Error::Io(io) => format!("{server} does not answer: {io}"),
        sqlx::Error::PoolTimedOut => {
            format!("{server} has not answered for {} s", LIMIT.as_secs())
        }
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
                (Some(1044 | 1142 | 1143 | 1227 | 1370), _) => format!(
                    "{server} denies access: {message}; grant the account SELECT, INSERT, UPDATE, \
                     DELETE and EXECUTE on the database, and for migrations also CREATE, ALTER, INDEX \
                     and CREATE ROUTINE"
                ),
                (Some(1305), _) => format!(
                    "{message}: a dump of the database was made without --routines; restore one with \
                     --routines"
                ),
                (None, Some("42501")) => format!(
                    "{server} denies access: {message}; let the account own the database, or run \
                     `stocklock migrate` as the owner, and grant the account SELECT, INSERT, UPDATE \
                     and DELETE on all tables"
                ),
                (_, Some("28000" | "28P01")) => format!("{server} denies access: {message}"),
                _ => error.to_string(),
            }
        }
        _ => error.to_string(),
    }
}

fn untrusted(server: &str, cause: &dyn Display) -> String {
    format!(
        "TLS to {server} failed: {cause}; the certificate must be for this host name, and be issued \
         by an authority that the system or the URL names (`sslrootcert`, on MariaDB `ssl-ca`)"
    )
}

fn driver_error(error: &MigrateError) -> Option<&sqlx::Error> {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => Some(error),
        _ => None,
    }
}
