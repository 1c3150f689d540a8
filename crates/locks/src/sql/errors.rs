//! Classifies the errors of the databases.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use crate::error::BackendError;

/// What an error says about the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It can be used again.
    Usable,
    /// It may be silent, or in the middle of a message, or a statement that was prepared may be out of date.
    Broken,
    /// The server refuses writes. It may have been replaced by another one, which a new connection reaches.
    ReadOnly,
}

pub(super) fn fate_after(error: &sqlx::Error) -> Fate {
    match error.as_database_error() {
        Some(error) if is_refusal_of_writes(error) => Fate::ReadOnly,
        Some(error) if !is_disconnect(error) && !is_stale(error) => Fate::Usable,
        _ => Fate::Broken,
    }
}

/// Errors that an operator must fix are permanent. All others may pass. An error of the database is a refusal:
/// the transaction was rolled back. Not those that may also come after a commit.
pub(super) fn backend_error(error: sqlx::Error) -> BackendError {
    let refusal = match error.as_database_error() {
        Some(error) if !may_follow_commit(error) => Some(is_in_the_way(error)),
        _ => None,
    };
    let is_permanent = match &error {
        sqlx::Error::Database(error) => needs_operator(&**error),
        sqlx::Error::Configuration(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_) => true,
        _ => false,
    };
    let error = if is_permanent {
        BackendError::permanent(error)
    } else {
        BackendError::transient(error)
    };
    match refusal {
        Some(true) => error.refused_for_now(),
        Some(false) => error.refused(),
        None => error,
    }
}

/// The error number of MariaDB or MySQL, or the code of the other databases.
fn code(error: &dyn DatabaseError) -> String {
    match error.try_downcast_ref::<MySqlDatabaseError>() {
        Some(mysql) => mysql.number().to_string(),
        None => error.code().unwrap_or_default().into_owned(),
    }
}

fn needs_operator(error: &dyn DatabaseError) -> bool {
    matches!(
        code(error).as_str(),
        // PostgreSQL: wrong user or password, no database, no table, no column, no permission.
        "28000" | "28P01" | "3D000" | "42P01" | "42703" | "42501"
        // MariaDB and MySQL: the same.
        | "1044" | "1045" | "1049" | "1146" | "1054" | "1142" | "1143"
        // SQLite: no table or column, no permission, no such file, not a database.
        | "1" | "3" | "14" | "26"
    )
}

/// Another transaction was in the way: a deadlock, or a wait for it that was too long.
fn is_in_the_way(error: &dyn DatabaseError) -> bool {
    // PostgreSQL; MariaDB and MySQL; SQLite.
    matches!(
        code(error).as_str(),
        "40001" | "40P01" | "55P03" | "1205" | "1213" | "5" | "6" | "261" | "517"
    )
}

fn is_refusal_of_writes(error: &dyn DatabaseError) -> bool {
    // PostgreSQL; MariaDB and MySQL.
    matches!(code(error).as_str(), "25006" | "1290" | "1792" | "1836")
}

fn is_stale(error: &dyn DatabaseError) -> bool {
    // PostgreSQL: a prepared statement returns other types than before, is unknown, or is another one's.
    // MariaDB and MySQL: it is unknown.
    matches!(code(error).as_str(), "0A000" | "26000" | "42P05" | "1243")
}

/// The commit may have happened.
fn may_follow_commit(error: &dyn DatabaseError) -> bool {
    let code = code(error);
    // MariaDB and MySQL: COMMIT failed, the statement was interrupted; a proxy has lost the server. PostgreSQL:
    // of the system, internal, completion unknown. SQLite: SQLITE_IOERR.
    let mysql = error.try_downcast_ref::<MySqlDatabaseError>();
    is_disconnect(error)
        || mysql.is_some_and(|error| matches!(error.number(), 2000..=2999 | 9000..=9999))
        || matches!(code.as_str(), "1180" | "1317" | "1969" | "3169" | "40003")
        || ["58", "XX"].iter().any(|class| code.starts_with(class))
        || (error.try_downcast_ref::<SqliteError>().is_some()
            && code.parse::<i32>().is_ok_and(|code| code & 0xff == 10))
}

fn is_disconnect(error: &dyn DatabaseError) -> bool {
    let code = code(error);
    // PostgreSQL: shutdown, crash, start-up, idle session, broken connection. MariaDB and MySQL:
    // shutdown, killed connection.
    ["57P", "08"].iter().any(|class| code.starts_with(class))
        || matches!(code.as_str(), "1053" | "1927" | "4031")
}
