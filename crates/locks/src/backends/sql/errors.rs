//! Classifies the errors of the databases.

use std::error::Error;

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use crate::shared::error::BackendError;

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
    let code = error.as_database_error().map(Code::of);
    code.map_or(Fate::Broken, |code| code.fate())
}

/// Errors that an operator must fix are permanent. All others may pass.
pub(super) fn backend_error(error: sqlx::Error) -> BackendError {
    if let Some(code) = error.as_database_error().map(Code::of) {
        return code.classify(error);
    }
    match error {
        sqlx::Error::Configuration(_)
        | sqlx::Error::ColumnDecode { .. }
        | sqlx::Error::Decode(_) => BackendError::permanent(error),
        _ => BackendError::transient(error),
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Code {
    Mysql(u16),
    Postgres(String),
    /// The extended result code.
    Sqlite(i32),
}

impl Code {
    fn of(error: &dyn DatabaseError) -> Self {
        if let Some(mysql) = error.try_downcast_ref::<MySqlDatabaseError>() {
            return Self::Mysql(mysql.number());
        }
        let code = error.code().unwrap_or_default();
        if error.try_downcast_ref::<SqliteError>().is_some() {
            return Self::Sqlite(code.parse().unwrap_or_default());
        }
        Self::Postgres(code.into_owned())
    }

    fn fate(&self) -> Fate {
        match self.kind() {
            Kind::ReadOnly => Fate::ReadOnly,
            Kind::Disconnect | Kind::Stale => Fate::Broken,
            _ => Fate::Usable,
        }
    }

    /// An error of the database is a refusal: the transaction was rolled back. Not those that may also come
    /// after a commit.
    fn classify(&self, cause: impl Into<Box<dyn Error + Send + Sync>>) -> BackendError {
        match self.kind() {
            Kind::Operator => BackendError::permanent(cause).refused(),
            Kind::InTheWay => BackendError::transient(cause).refused_for_now(),
            Kind::Unknown | Kind::Disconnect => BackendError::transient(cause),
            Kind::ReadOnly | Kind::Stale | Kind::Other => BackendError::transient(cause).refused(),
        }
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Mysql(number) => match number {
                // Wrong user or password, no database, no table, no column, no permission.
                1044 | 1045 | 1049 | 1054 | 1142 | 1143 | 1146 => Kind::Operator,
                1205 | 1213 => Kind::InTheWay,
                1290 | 1792 | 1836 => Kind::ReadOnly,
                // A prepared statement is unknown.
                1243 => Kind::Stale,
                // A Galera node has lost the others, shutdown, killed connection.
                1047 | 1053 | 1927 | 4031 => Kind::Disconnect,
                // COMMIT failed, the statement was interrupted; a proxy has lost the server.
                1180 | 1317 | 1969 | 3169 | 2000..=2999 | 9000..=9999 => Kind::Unknown,
                _ => Kind::Other,
            },
            Self::Postgres(sqlstate) => match sqlstate.as_str() {
                "28000" | "28P01" | "3D000" | "42501" | "42703" | "42P01" => Kind::Operator,
                "40001" | "40P01" | "55P03" => Kind::InTheWay,
                "25006" => Kind::ReadOnly,
                // It returns other types than before, is unknown, or is another one's.
                "0A000" | "26000" | "42P05" => Kind::Stale,
                // Shutdown, crash, start-up, idle session, broken connection.
                state if has_class(state, &["57P", "08"]) => Kind::Disconnect,
                "40003" => Kind::Unknown,
                // Of the system, internal.
                state if has_class(state, &["58", "XX"]) => Kind::Unknown,
                _ => Kind::Other,
            },
            Self::Sqlite(extended) => match extended {
                // No table or column, no permission, no such file, not a database.
                1 | 3 | 14 | 26 => Kind::Operator,
                5 | 6 | 261 | 517 => Kind::InTheWay,
                // SQLITE_IOERR.
                code if code & 0xff == 10 => Kind::Unknown,
                _ => Kind::Other,
            },
        }
    }
}

/// What a code means.
enum Kind {
    /// An operator must fix it.
    Operator,
    /// Another transaction was in the way: a deadlock, or a wait for it that was too long.
    InTheWay,
    ReadOnly,
    /// A statement that was prepared is out of date.
    Stale,
    /// The commit may have happened.
    Unknown,
    /// The commit may have happened, and the connection is lost.
    Disconnect,
    Other,
}

fn has_class(sqlstate: &str, classes: &[&str]) -> bool {
    classes.iter().any(|class| sqlstate.starts_with(class))
}

#[cfg(test)]
mod tests {
    use self::Answer::{Refused, RefusedForNow, Unknown};
    use super::Fate::{Broken, ReadOnly, Usable};
    use super::*;

    /// What is known of the request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Answer {
        /// It was not executed.
        Refused,
        /// It was not executed, and a repetition may succeed at once.
        RefusedForNow,
        Unknown,
    }

    fn mysql(numbers: &[u16]) -> Vec<Code> {
        numbers.iter().copied().map(Code::Mysql).collect()
    }

    fn postgres(states: &[&str]) -> Vec<Code> {
        let code = |state: &&str| Code::Postgres((*state).to_owned());
        states.iter().map(code).collect()
    }

    fn sqlite(codes: &[i32]) -> Vec<Code> {
        codes.iter().copied().map(Code::Sqlite).collect()
    }

    #[test]
    fn each_code_says_what_is_known_of_the_request() {
        let permanent = [
            mysql(&[1044, 1045, 1049, 1054, 1142, 1143, 1146]),
            postgres(&["28000", "28P01", "3D000", "42501", "42703", "42P01"]),
            sqlite(&[1, 3, 14, 26]),
        ]
        .concat();
        let rows = [
            (Usable, RefusedForNow, mysql(&[1205, 1213])),
            (ReadOnly, Refused, mysql(&[1290, 1792, 1836])),
            (Broken, Refused, mysql(&[1243])),
            (Usable, Unknown, mysql(&[1180, 1317, 1969, 3169])),
            (Usable, Unknown, mysql(&[2000, 2013, 2999])),
            (Usable, Unknown, mysql(&[9000, 9001, 9999])),
            (Broken, Unknown, mysql(&[1047, 1053, 1927, 4031])),
            (Usable, Refused, mysql(&[5, 1062, 1999, 3000, 4025, 8999])),
            (
                Usable,
                RefusedForNow,
                postgres(&["40001", "40P01", "55P03"]),
            ),
            (ReadOnly, Refused, postgres(&["25006"])),
            (Broken, Refused, postgres(&["0A000", "26000", "42P05"])),
            (Usable, Unknown, postgres(&["40003", "58030", "XX000"])),
            (Broken, Unknown, postgres(&["57P01", "57P02", "57P03"])),
            (Broken, Unknown, postgres(&["57P05", "08000", "08006"])),
            (Usable, Refused, postgres(&["23505", "53100", "57014"])),
            (Usable, RefusedForNow, sqlite(&[5, 6, 261, 517])),
            (Usable, Unknown, sqlite(&[10, 778, 1290])),
            (Usable, Refused, sqlite(&[8, 13, 2067])),
        ];
        let refusals = permanent.iter().map(|code| (Usable, Refused, code));
        let rows = rows
            .iter()
            .flat_map(|(fate, answer, codes)| codes.iter().map(move |code| (*fate, *answer, code)));
        for (fate, answer, code) in refusals.chain(rows) {
            assert_eq!(code.fate(), fate, "{code:?}");
            let error = code.classify("an answer");
            let found = match (error.is_refusal(), error.may_pass_at_once()) {
                (true, false) => Refused,
                (true, true) => RefusedForNow,
                (false, _) => Unknown,
            };
            assert_eq!(found, answer, "{code:?}");
            assert_eq!(error.is_permanent(), permanent.contains(code), "{code:?}");
        }
    }
}
