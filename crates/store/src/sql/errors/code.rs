//! The databases' error codes, and what each means.
//!
//! sqlx yields the error number of MariaDB and MySQL, the SQLSTATE of PostgreSQL, and the extended
//! result code of SQLite.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use super::Verdict;

/// A database's error code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Code {
    Mysql(u16),
    Postgres(String),
    /// The extended result code.
    Sqlite(i32),
}

impl Code {
    pub(super) fn of(error: &dyn DatabaseError) -> Self {
        if let Some(mysql) = error.try_downcast_ref::<MySqlDatabaseError>() {
            return Self::Mysql(mysql.number());
        }
        let code = error.code().unwrap_or_default();
        if error.try_downcast_ref::<SqliteError>().is_some() {
            return Self::Sqlite(code.parse().unwrap_or_default());
        }
        Self::Postgres(code.into_owned())
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Mysql(number) => mysql_verdict(*number),
            Self::Postgres(sqlstate) => postgres_verdict(sqlstate),
            Self::Sqlite(extended) => sqlite_verdict(*extended),
        }
    }

    /// Whether a COMMIT that failed with this code is known to be undone.
    ///
    /// A list of known codes, because any other may come after the log was written: the server was
    /// killed there, was shut down, or lost its cluster or its disk.
    pub(super) fn undoes_commit(&self) -> bool {
        match self {
            // Deadlock; with Galera, a transaction that failed certification.
            Self::Mysql(number) => *number == 1213,
            Self::Postgres(sqlstate) => matches!(sqlstate.as_str(), "40001" | "40P01"),
            // SQLITE_BUSY and its variants, SQLITE_FULL.
            Self::Sqlite(extended) => matches!(extended & 0xff, 5 | 13),
        }
    }

    /// Whether a statement that commits as it ends, and failed with this code, has not committed.
    pub(super) fn is_of_the_statement(&self) -> bool {
        match self {
            // Not: connection exceptions, shutdown, system errors such as the disk's, internal errors.
            Self::Postgres(sqlstate) => !["08", "57P0", "58", "XX"]
                .iter()
                .any(|class| sqlstate.is_empty() || sqlstate.starts_with(class)),
            Self::Mysql(_) | Self::Sqlite(_) => self.verdict() != Verdict::ConnectionLost,
        }
    }
}

fn mysql_verdict(number: u16) -> Verdict {
    match number {
        // Deadlock; row changed since it was read (MariaDB); query interrupted.
        1213 | 1020 | 1317 => Verdict::RetryTransaction,
        // Lock wait time-out.
        1205 => Verdict::RollBackThenRetry,
        // Statement time-outs of MariaDB and MySQL.
        1969 | 3024 => Verdict::TooSlow,
        // Shutdown in progress; network errors; connection killed; disconnected as idle.
        1053 | 1077..=1079 | 1152..=1161 | 1184 | 1927 | 4031 => Verdict::ConnectionLost,
        // Too many connections; Galera node not ready; read-only; disk or table full; out of
        // resources.
        1040 | 1041 | 1047 | 1203 | 1290 | 1792 | 1836 | 1021 | 1037 | 1038 | 1114 => {
            Verdict::Unavailable
        }
        1062 | 1586 => Verdict::Duplicate,
        // CHECK violated, on MySQL and on MariaDB.
        3819 | 4025 => Verdict::CheckViolated,
        _ => Verdict::Bug,
    }
}

fn postgres_verdict(sqlstate: &str) -> Verdict {
    match sqlstate {
        // Serialization failure, deadlock.
        "40001" | "40P01" => Verdict::RetryTransaction,
        // Lock not available.
        "55P03" => Verdict::RollBackThenRetry,
        // Statement time-out, or cancelled by an administrator.
        "57014" => Verdict::TooSlow,
        // Shut down by an administrator, by a crash, as idle in a transaction, as idle.
        "57P01" | "57P02" | "25P03" | "57P05" => Verdict::ConnectionLost,
        // Starting up; read-only; out of connections, disk, memory.
        "57P03" | "25006" | "53000" | "53100" | "53200" | "53300" => Verdict::Unavailable,
        "23505" => Verdict::Duplicate,
        "23514" => Verdict::CheckViolated,
        class_08 if class_08.starts_with("08") => Verdict::ConnectionLost,
        _ => Verdict::Bug,
    }
}

fn sqlite_verdict(extended: i32) -> Verdict {
    match extended {
        // SQLITE_BUSY_SNAPSHOT: a read transaction cannot become a writing one.
        517 => Verdict::RetryTransaction,
        // SQLITE_CONSTRAINT_PRIMARYKEY, _UNIQUE.
        1555 | 2067 => Verdict::Duplicate,
        // SQLITE_CONSTRAINT_CHECK.
        275 => Verdict::CheckViolated,
        _ => match extended & 0xff {
            // SQLITE_BUSY, SQLITE_LOCKED.
            5 | 6 => Verdict::RollBackThenRetry,
            // SQLITE_READONLY, SQLITE_FULL, SQLITE_CANTOPEN.
            8 | 13 | 14 => Verdict::Unavailable,
            // SQLITE_IOERR: in COMMIT, what reached the disk is unknown.
            10 => Verdict::ConnectionLost,
            _ => Verdict::Bug,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mysql_error_numbers_have_verdicts() {
        for (number, verdict) in [
            (1213, Verdict::RetryTransaction),
            (1020, Verdict::RetryTransaction),
            (1205, Verdict::RollBackThenRetry),
            (1969, Verdict::TooSlow),
            (3024, Verdict::TooSlow),
            (1053, Verdict::ConnectionLost),
            (1927, Verdict::ConnectionLost),
            (1040, Verdict::Unavailable),
            (1047, Verdict::Unavailable),
            (1290, Verdict::Unavailable),
            (1062, Verdict::Duplicate),
            (3819, Verdict::CheckViolated),
            (4025, Verdict::CheckViolated),
            (1064, Verdict::Bug),
        ] {
            assert_eq!(mysql_verdict(number), verdict, "{number}");
        }
    }

    #[test]
    fn postgres_states_have_verdicts() {
        for (state, verdict) in [
            ("40001", Verdict::RetryTransaction),
            ("40P01", Verdict::RetryTransaction),
            ("55P03", Verdict::RollBackThenRetry),
            ("57014", Verdict::TooSlow),
            ("57P01", Verdict::ConnectionLost),
            ("08006", Verdict::ConnectionLost),
            ("25P03", Verdict::ConnectionLost),
            ("57P03", Verdict::Unavailable),
            ("53300", Verdict::Unavailable),
            ("25006", Verdict::Unavailable),
            ("23505", Verdict::Duplicate),
            ("23514", Verdict::CheckViolated),
            ("25P02", Verdict::Bug),
            ("42601", Verdict::Bug),
        ] {
            assert_eq!(postgres_verdict(state), verdict, "{state}");
        }
    }

    #[test]
    fn sqlite_codes_have_verdicts() {
        for (code, verdict) in [
            (5, Verdict::RollBackThenRetry),
            (261, Verdict::RollBackThenRetry),
            (6, Verdict::RollBackThenRetry),
            (517, Verdict::RetryTransaction),
            (1555, Verdict::Duplicate),
            (2067, Verdict::Duplicate),
            (275, Verdict::CheckViolated),
            (13, Verdict::Unavailable),
            (1032, Verdict::Unavailable),
            (778, Verdict::ConnectionLost),
            (1, Verdict::Bug),
        ] {
            assert_eq!(sqlite_verdict(code), verdict, "{code}");
        }
    }

    #[test]
    fn only_known_codes_undo_a_commit() {
        let postgres = |state: &str| Code::Postgres(state.to_owned());
        for (code, undone) in [
            (Code::Mysql(1213), true),
            (Code::Mysql(1020), false),
            (Code::Mysql(1026), false),
            (Code::Mysql(1040), false),
            (Code::Mysql(1047), false),
            (Code::Mysql(1053), false),
            (Code::Mysql(1062), false),
            (Code::Mysql(1114), false),
            (Code::Mysql(1180), false),
            (Code::Mysql(1205), false),
            (Code::Mysql(1290), false),
            (Code::Mysql(1317), false),
            (Code::Mysql(1969), false),
            (Code::Mysql(3024), false),
            (Code::Mysql(4025), false),
            (postgres("40001"), true),
            (postgres("40P01"), true),
            (postgres("08006"), false),
            (postgres("23505"), false),
            (postgres("23514"), false),
            (postgres("25006"), false),
            (postgres("53100"), false),
            (postgres("55P03"), false),
            (postgres("57014"), false),
            (postgres("57P01"), false),
            (postgres("58030"), false),
            (postgres("XX000"), false),
            (postgres(""), false),
            (Code::Sqlite(5), true),
            (Code::Sqlite(261), true),
            (Code::Sqlite(517), true),
            (Code::Sqlite(13), true),
            (Code::Sqlite(1), false),
            (Code::Sqlite(8), false),
            (Code::Sqlite(778), false),
            (Code::Sqlite(14), false),
            (Code::Sqlite(2067), false),
        ] {
            assert_eq!(code.undoes_commit(), undone, "{code:?}");
        }
    }
}
