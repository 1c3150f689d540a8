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
            // Not: COMMIT failed; the server interrupted the procedure, at any point.
            Self::Mysql(1180 | 1317 | 1969) => false,
            Self::Mysql(_) | Self::Sqlite(_) => self.verdict() != Verdict::ConnectionLost,
        }
    }
}

fn mysql_verdict(number: u16) -> Verdict {
    match number {
        // Deadlock; row changed since it was read (MariaDB); query interrupted; table changed since
        // the snapshot or since the statement was prepared.
        1213 | 1020 | 1317 | 1412 | 1615 => Verdict::RetryTransaction,
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
        // Shut down by an administrator, by a crash, as idle in a transaction, as idle, as too long
        // in a transaction.
        "57P01" | "57P02" | "25P03" | "57P05" | "25P04" => Verdict::ConnectionLost,
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
    fn each_code_has_its_verdict_before_and_in_commit() {
        let verdicts = [
            (RetryTransaction, mysql(&[1213, 1020, 1317, 1412, 1615])),
            (RollBackThenRetry, mysql(&[1205])),
            (TooSlow, mysql(&[1969, 3024])),
            (ConnectionLost, mysql(&[1053, 1927])),
            (Unavailable, mysql(&[1040, 1047, 1114, 1290])),
            (Duplicate, mysql(&[1062])),
            (Bug, mysql(&[1026, 1064, 1180, 3819, 4025])),
            (RetryTransaction, postgres(&["40001", "40P01"])),
            (RollBackThenRetry, postgres(&["55P03"])),
            (TooSlow, postgres(&["57014"])),
            (
                ConnectionLost,
                postgres(&["57P01", "57P02", "08006", "25P03", "25P04"]),
            ),
            (Unavailable, postgres(&["57P03", "53100", "53300", "25006"])),
            (Duplicate, postgres(&["23505"])),
            (
                Bug,
                postgres(&["23514", "25P02", "42601", "42P01", "58030", "XX000", ""]),
            ),
            (RetryTransaction, sqlite(&[517])),
            (RollBackThenRetry, sqlite(&[5, 261, 6])),
            (ConnectionLost, sqlite(&[778])),
            (Unavailable, sqlite(&[13, 8, 14, 1032])),
            (Duplicate, sqlite(&[1555, 2067])),
            (Bug, sqlite(&[275, 1])),
        ];
        let undo_a_commit = [
            mysql(&[1213]),
            postgres(&["40001", "40P01"]),
            sqlite(&[5, 261, 517, 13]),
        ];
        let may_follow_the_commit = [
            mysql(&[1053, 1927, 1180, 1317, 1969]),
            postgres(&["08006", "57P01", "57P02", "57P03", "58030", "XX000", ""]),
            sqlite(&[778]),
        ];
        for (verdict, codes) in verdicts {
            for code in codes {
                assert_eq!(code.verdict(), verdict, "{code:?}");
                let undone = undo_a_commit.concat().contains(&code);
                assert_eq!(code.undoes_commit(), undone, "{code:?}");
                let unknown = may_follow_the_commit.concat().contains(&code);
                assert_eq!(code.is_of_the_statement(), !unknown, "{code:?}");
            }
        }
    }
}
