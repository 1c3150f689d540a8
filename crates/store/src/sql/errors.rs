//! Maps driver errors to what is to be done about them.
//!
//! Before COMMIT was sent, nothing can be committed. After it was sent, only an answer that is known
//! to undo the transaction means that nothing was. A statement that commits as it ends has an unknown
//! outcome once its answer is missing. The databases' error codes are in `code`.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;
use stocklock_core::stock::DriverError;

use crate::{Result, StoreError};

mod code;

use code::Code;

/// What an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The server rolled the transaction back (deadlock, serialization failure): run it again.
    RetryTransaction,
    /// The statement stopped waiting for a lock: roll back, then run it again if time is left.
    RollBackThenRetry,
    /// The server ended the statement because it took too long; it did not wait for a lock.
    TooSlow,
    /// The connection is gone. In COMMIT the outcome is unknown; before COMMIT, run it again.
    ConnectionLost,
    /// What the connection has prepared is gone or out of date, for example because a column has another
    /// type now. Nothing was executed: run it again on a new connection.
    Stale,
    /// The server is away, is starting, or refuses to write. A new connection may reach another one.
    Unavailable,
    /// The server has no more disk, memory, statements or locks, or the account has reached a limit. A new
    /// connection would not help.
    Full,
    /// The account lacks a permission. The service does not try this again at its start.
    Denied,
    /// A unique index has the row already: look it up, then replay.
    Duplicate,
    /// A statement or a value is wrong, or a rule of the operator refuses the row: a defect.
    Bug,
    /// Any other error of the database, also that of a schema which the operator has changed: the connection
    /// is not used again.
    Unknown,
}

/// What `error` calls for.
pub(super) fn classify(error: &sqlx::Error) -> Verdict {
    match error {
        sqlx::Error::Database(database) => match of_postgres(error) {
            Some(error) if ended_in_a_lock_wait(error) => Verdict::RollBackThenRetry,
            Some(error) if is_unsupported(error) => Verdict::Unknown,
            None if is_missing_in_sqlite(&**database) => Verdict::Unknown,
            _ => Code::of(&**database).verdict(),
        },
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => {
            Verdict::ConnectionLost
        }
        sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::Tls(_) => Verdict::Unavailable,
        _ => Verdict::Bug,
    }
}

fn of_postgres(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref()
}

/// Whether PostgreSQL ended a statement while it waited for a row's holder.
///
/// If several transactions wait, one statement waits twice, for its turn and for the holder, and
/// `lock_timeout` starts again for each wait. So `statement_timeout` may come first. Only such a wait
/// gives the error a context. The context's words depend on the server's language.
fn ended_in_a_lock_wait(error: &PgDatabaseError) -> bool {
    error.code() == "57014" && error.r#where().is_some()
}

/// Whether PostgreSQL has refused something that it cannot do. It has the same code for a prepared statement
/// that returns other types than before, which a new connection prepares again.
fn is_unsupported(error: &PgDatabaseError) -> bool {
    error.code() == "0A000" && error.routine() != Some("RevalidateCachedQuery")
}

/// Whether a table or a column of a statement is missing, because the operator has changed the schema. SQLite
/// has the same code for all errors in statements.
fn is_missing_in_sqlite(error: &dyn DatabaseError) -> bool {
    let text = error.message();
    let is_missing = text.starts_with("no such ") || text.contains(" has no column named ");
    is_missing && error.try_downcast_ref::<SqliteError>().is_some()
}

/// Whether the server refuses a connection because there are as many as it allows.
pub(super) fn is_connection_limit(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().map(Code::of);
    code.is_some_and(|code| code.limits_connections())
}

/// The database does not answer, or refuses to work.
pub(super) fn unavailable(error: impl Into<DriverError>) -> StoreError {
    StoreError::Unavailable(error.into())
}

/// Whether a statement that locks a row has ended because another transaction holds it. MariaDB can bound a
/// short wait only by the time of the statement.
pub(super) fn stopped_waiting(error: &sqlx::Error) -> bool {
    matches!(
        classify(error),
        Verdict::RollBackThenRetry | Verdict::TooSlow
    )
}

/// Whether what a connection had prepared was gone or out of date. Nothing was executed.
pub(super) fn is_stale(error: &StoreError) -> bool {
    let StoreError::ConnectionLost(source) = error else {
        return false;
    };
    let source = source.downcast_ref::<sqlx::Error>();
    source.is_some_and(|error| classify(error) == Verdict::Stale)
}

/// The error with its code, which PostgreSQL's text does not have.
fn with_code(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(DatabaseError::code);
    format!("{error} (code {})", code.unwrap_or_default())
}

/// Maps an error from before COMMIT, if the statement can neither find a duplicate nor violate a
/// CHECK. Nothing was changed.
pub(super) fn before_commit(error: sqlx::Error) -> StoreError {
    let verdict = classify(&error);
    let source = match verdict {
        Verdict::Unknown => with_code(&error).into(),
        _ => error.into(),
    };
    match verdict {
        Verdict::RetryTransaction => StoreError::Aborted(source),
        Verdict::RollBackThenRetry => StoreError::LockWait(source),
        Verdict::TooSlow => StoreError::TooSlow(source),
        Verdict::ConnectionLost | Verdict::Stale => StoreError::ConnectionLost(source),
        Verdict::Unavailable | Verdict::Full | Verdict::Denied => unavailable(source),
        Verdict::Duplicate | Verdict::Bug => StoreError::Bug(source),
        Verdict::Unknown => StoreError::Unexpected(source),
    }
}

/// Maps an error from COMMIT. It may have happened unless the database is known to have undone it.
pub(super) fn in_commit(error: sqlx::Error) -> StoreError {
    unknown_unless(Code::undoes_commit, error)
}

/// Maps an error from a statement that commits as it ends. The server reports errors of the statement
/// before it commits. If the server shuts down or never replies, the commit may have happened.
pub(super) fn in_autocommit(error: sqlx::Error) -> StoreError {
    unknown_unless(Code::is_of_the_statement, error)
}

fn unknown_unless(nothing_changed: impl Fn(&Code) -> bool, error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().map(Code::of);
    if code.is_some_and(|code| nothing_changed(&code)) {
        before_commit(error)
    } else if error.as_database_error().is_some() {
        StoreError::outcome_unknown(with_code(&error))
    } else {
        StoreError::outcome_unknown(error)
    }
}

/// Whether PostgreSQL stopped waiting for another transaction that is recording the same key. That
/// wait names an index of the ledger; the wait for the level's row does not.
pub(super) fn waited_for_the_ledger(error: &sqlx::Error) -> bool {
    let context = of_postgres(error).and_then(PgDatabaseError::r#where);
    classify(error) == Verdict::RollBackThenRetry
        && context.is_some_and(|context| context.contains("movement"))
}

/// Whether a movement was new to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inserted {
    New,
    Duplicate,
}

/// Maps the answer to an insert into the ledger. `has_key`: the only lock that the insert can wait
/// for is that of another transaction which is recording the same key.
pub(super) fn inserted<T>(answer: sqlx::Result<T>, has_key: bool) -> Result<Inserted> {
    let Err(error) = answer else {
        return Ok(Inserted::New);
    };
    match classify(&error) {
        Verdict::Duplicate => Ok(Inserted::Duplicate),
        Verdict::RollBackThenRetry if has_key => Err(StoreError::KeyInFlight(error.into())),
        _ => Err(before_commit(error)),
    }
}

/// Maps an error from a statement that inserts a row which was absent. If it is there now, another
/// transaction was faster: try again.
pub(super) fn conflict_if_duplicate(error: sqlx::Error) -> StoreError {
    if classify(&error) == Verdict::Duplicate {
        return StoreError::Aborted(error.into());
    }
    before_commit(error)
}

#[cfg(test)]
mod tests {
    use std::io;

    use sqlx::{Connection, Executor, SqliteConnection};

    use super::*;

    /// The name of the error before COMMIT, in COMMIT, and in a statement that commits as it ends.
    fn names(mut error: impl FnMut() -> sqlx::Error) -> [String; 3] {
        let name = |error: StoreError| {
            let text = format!("{error:?}");
            text.split('(').next().unwrap_or_default().to_owned()
        };
        [
            name(before_commit(error())),
            name(in_commit(error())),
            name(in_autocommit(error())),
        ]
    }

    #[test]
    fn missing_answer_is_unknown_outcome_only_in_commit() {
        let errors: [(fn() -> sqlx::Error, _); 6] = [
            (
                || io::Error::from(io::ErrorKind::ConnectionReset).into(),
                "ConnectionLost",
            ),
            (|| sqlx::Error::Protocol("cut".to_owned()), "ConnectionLost"),
            (|| sqlx::Error::WorkerCrashed, "Unavailable"),
            (|| sqlx::Error::Tls("cut".into()), "Unavailable"),
            (|| sqlx::Error::PoolTimedOut, "Unavailable"),
            (|| sqlx::Error::RowNotFound, "Bug"),
        ];
        for (error, before) in errors {
            assert_eq!(names(error), [before, "OutcomeUnknown", "OutcomeUnknown"]);
        }
    }

    #[tokio::test]
    async fn error_that_the_database_answered_is_known_by_its_code() {
        let mut database = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let setup = "CREATE TABLE sale (id UNIQUE); PRAGMA max_page_count = 3";
        database.execute(setup).await.unwrap();
        for (statement, expected) in [
            ("INSERT INTO", ["Bug", "OutcomeUnknown", "Bug"]),
            (
                "INSERT INTO nowhere VALUES (1)",
                ["Unexpected", "OutcomeUnknown", "Unexpected"],
            ),
            (
                "INSERT INTO sale (what) VALUES (1)",
                ["Unexpected", "OutcomeUnknown", "Unexpected"],
            ),
            (
                "INSERT INTO sale VALUES (zeroblob(100000))",
                ["Unavailable"; 3],
            ),
        ] {
            let mut failed = Vec::new();
            for _ in expected {
                failed.push(database.execute(statement).await.unwrap_err());
            }
            let error = || failed.pop().expect("one for each stage");
            assert_eq!(names(error), expected, "{statement}");
        }
    }
}
