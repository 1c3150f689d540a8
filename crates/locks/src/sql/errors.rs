//! Classifies the errors of the databases.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

use crate::error::BackendError;

/// Whether the connection can be used again. A server that refuses writes may have been replaced by
/// another one, which a new connection reaches. A statement that was prepared may be gone or out of date.
pub(super) fn keeps_connection(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| {
        !is_refusal_of_writes(error) && !is_disconnect(error) && !is_stale(error)
    })
}

/// Errors that an operator must fix are permanent. All others may pass.
pub(super) fn backend_error(error: sqlx::Error) -> BackendError {
    let is_permanent = match &error {
        sqlx::Error::Database(error) => needs_operator(&**error),
        sqlx::Error::Configuration(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_) => true,
        _ => false,
    };
    if is_permanent {
        BackendError::permanent(error)
    } else {
        BackendError::transient(error)
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

fn is_refusal_of_writes(error: &dyn DatabaseError) -> bool {
    // PostgreSQL; MariaDB and MySQL.
    matches!(code(error).as_str(), "25006" | "1290" | "1792" | "1836")
}

fn is_stale(error: &dyn DatabaseError) -> bool {
    // PostgreSQL: a prepared statement returns other types than before, is unknown, or is another one's.
    // MariaDB and MySQL: it is unknown.
    matches!(code(error).as_str(), "0A000" | "26000" | "42P05" | "1243")
}

fn is_disconnect(error: &dyn DatabaseError) -> bool {
    let code = code(error);
    // PostgreSQL: shutdown, crash, start-up, idle session, broken connection. MariaDB and MySQL:
    // shutdown, killed connection.
    ["57P", "08"].iter().any(|class| code.starts_with(class))
        || matches!(code.as_str(), "1053" | "1927" | "4031")
}
