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
    use super::Verdict::{
        Bug, ConnectionLost, Duplicate, RetryTransaction, RollBackThenRetry, TooSlow, Unavailable,
    };
    use super::*;

    /// Each code with its verdict, and whether it is known to undo a COMMIT.
    #[test]
    fn codes_have_verdicts() {
        let mysql = [
            (1213, RetryTransaction, true),
            (1020, RetryTransaction, false),
            (1317, RetryTransaction, false),
            (1205, RollBackThenRetry, false),
            (1969, TooSlow, false),
            (3024, TooSlow, false),
            (1053, ConnectionLost, false),
            (1927, ConnectionLost, false),
            (1040, Unavailable, false),
            (1047, Unavailable, false),
            (1114, Unavailable, false),
            (1290, Unavailable, false),
            (1062, Duplicate, false),
            (3819, Bug, false),
            (4025, Bug, false),
            (1026, Bug, false),
            (1064, Bug, false),
            (1180, Bug, false),
        ];
        let postgres = [
            ("40001", RetryTransaction, true),
            ("40P01", RetryTransaction, true),
            ("55P03", RollBackThenRetry, false),
            ("57014", TooSlow, false),
            ("57P01", ConnectionLost, false),
            ("08006", ConnectionLost, false),
            ("25P03", ConnectionLost, false),
            ("57P03", Unavailable, false),
            ("53100", Unavailable, false),
            ("53300", Unavailable, false),
            ("25006", Unavailable, false),
            ("23505", Duplicate, false),
            ("23514", Bug, false),
            ("25P02", Bug, false),
            ("42601", Bug, false),
            ("58030", Bug, false),
            ("XX000", Bug, false),
            ("", Bug, false),
        ];
        let sqlite = [
            (5, RollBackThenRetry, true),
            (261, RollBackThenRetry, true),
            (6, RollBackThenRetry, false),
            (517, RetryTransaction, true),
            (1555, Duplicate, false),
            (2067, Duplicate, false),
            (13, Unavailable, true),
            (8, Unavailable, false),
            (14, Unavailable, false),
            (1032, Unavailable, false),
            (778, ConnectionLost, false),
            (275, Bug, false),
            (1, Bug, false),
        ];
        let mysql = mysql.map(|(number, verdict, undone)| (Code::Mysql(number), verdict, undone));
        let postgres = postgres
            .map(|(state, verdict, undone)| (Code::Postgres(state.to_owned()), verdict, undone));
        let sqlite = sqlite.map(|(code, verdict, undone)| (Code::Sqlite(code), verdict, undone));
        for (code, verdict, undone) in mysql.into_iter().chain(postgres).chain(sqlite) {
            assert_eq!(code.verdict(), verdict, "{code:?}");
            assert_eq!(code.undoes_commit(), undone, "{code:?}");
        }
    }
}
