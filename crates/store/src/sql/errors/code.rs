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

    /// Whether the server refuses a connection because there are as many as it allows: in all, of the user
    /// or of the database.
    pub(super) fn limits_connections(&self) -> bool {
        match self {
            Self::Mysql(number) => matches!(number, 1040 | 1203 | 1226),
            Self::Postgres(sqlstate) => sqlstate == "53300",
            Self::Sqlite(_) => false,
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
            // Not: connection exceptions, shutdown, system errors such as the disk's, internal errors; a transaction
            // that took too long.
            Self::Postgres(sqlstate) => !["08", "57P0", "58", "XX", "25P04"]
                .iter()
                .any(|class| sqlstate.is_empty() || sqlstate.starts_with(class)),
            // Not: COMMIT failed; a node of Galera lost the majority, and commits what it has sent when it is back;
            // the server interrupted the procedure, or had no memory left, at any point. The procedure answers
            // after its COMMIT.
            Self::Mysql(1047 | 1180 | 1317 | 1969 | 5 | 1037 | 1041 | 1998) => false,
            Self::Mysql(_) | Self::Sqlite(_) => self.verdict() != Verdict::ConnectionLost,
        }
    }
}

fn mysql_verdict(number: u16) -> Verdict {
    match number {
        // Deadlock; row changed since it was read (MariaDB); query interrupted; table changed since
        // the snapshot or since the statement was prepared; wait ended by a data definition.
        1213 | 1020 | 1317 | 1412 | 1615 | 1689 => Verdict::RetryTransaction,
        // Lock wait time-out; row locked (NOWAIT of MySQL).
        1205 | 3572 => Verdict::RollBackThenRetry,
        // Statement time-outs of MariaDB and MySQL.
        1969 | 3024 => Verdict::TooSlow,
        // Shutdown in progress; network errors; connection killed (MariaDB, MySQL); disconnected as idle.
        // A proxy reports that it lost its server by the numbers of clients, or by its own.
        1053 | 1077..=1079 | 1152..=1161 | 1184 | 1927 | 3169 | 4031
        | 2000..=2999 | 9000..=9999 => Verdict::ConnectionLost,
        // Unknown prepared statement.
        1243 => Verdict::Stale,
        // Galera node not ready; read-only; offline.
        1047 | 1290 | 1792 | 1836 | 1874 | 3032 => Verdict::Unavailable,
        // Disk or table full; a cache of the binary log.
        1021 | 1114 | 1197 | 1705
        // Out of memory, threads, locks, transactions.
        | 5 | 1037 | 1038 | 1041 | 1135 | 1206 | 1637 | 1998
        // Limits of connections, of an account, of prepared statements.
        | 1040 | 1203 | 1226 | 1461 => Verdict::Full,
        1044 | 1142 | 1143 | 1227 | 1370 => Verdict::Denied,
        1062 | 1586 => Verdict::Duplicate,
        // Wrong statement: syntax, number of columns.
        1064 | 1136 | 1222
        // Wrong value: NULL, missing, out of range, truncated, of another type or collation.
        | 1048 | 1264 | 1265 | 1267 | 1292 | 1366 | 1406 | 1690
        // Foreign key, SIGNAL, CHECK of MySQL and of MariaDB.
        | 1216 | 1217 | 1451 | 1452 | 1644 | 3819 | 4025 => Verdict::Bug,
        // Also if the operator has changed the schema: unknown column, table, or procedure; a procedure with
        // other arguments; a new column without a default.
        _ => Verdict::Unknown,
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
        // Shut down by an administrator, by a crash; database dropped; ended as idle in a transaction,
        // as idle, as too long in a transaction.
        "57P01" | "57P02" | "57P04" | "25P03" | "57P05" | "25P04" => Verdict::ConnectionLost,
        // A prepared statement returns other types than before, is unknown, or is another one's: only a
        // pooler causes the last two.
        "0A000" | "26000" | "42P05" => Verdict::Stale,
        // Starting up; read-only.
        "57P03" | "25006" => Verdict::Unavailable,
        "23505" => Verdict::Duplicate,
        "42501" => Verdict::Denied,
        // A statement in a transaction that has failed.
        "25P02" => Verdict::Bug,
        // The operator has changed the schema: unknown table, column, function, type or index of a conflict;
        // a column of another type; a table that became a view.
        "42P01" | "42703" | "42883" | "42704" | "42P10" | "42804" | "42846" | "42809" => {
            Verdict::Unknown
        }
        _ => match sqlstate.get(..2) {
            Some("08") => Verdict::ConnectionLost,
            // Out of disk, memory, connections, or at a configured limit.
            Some("53") => Verdict::Full,
            // Wrong number of rows, wrong value, constraint, wrong statement, view, RAISE of a trigger.
            Some("21" | "22" | "23" | "42" | "44" | "P0") => Verdict::Bug,
            _ => Verdict::Unknown,
        },
    }
}

fn sqlite_verdict(extended: i32) -> Verdict {
    match extended {
        // SQLITE_BUSY_SNAPSHOT: a read transaction cannot become a writing one.
        517 => Verdict::RetryTransaction,
        // SQLITE_CONSTRAINT_PRIMARYKEY, _UNIQUE.
        1555 | 2067 => Verdict::Duplicate,
        _ => match extended & 0xff {
            // SQLITE_ABORT: rolled back; SQLITE_SCHEMA.
            4 | 17 => Verdict::RetryTransaction,
            // SQLITE_BUSY, SQLITE_LOCKED, SQLITE_PROTOCOL: many open the log at once.
            5 | 6 | 15 => Verdict::RollBackThenRetry,
            // SQLITE_INTERRUPT.
            9 => Verdict::TooSlow,
            // SQLITE_PERM, SQLITE_READONLY, SQLITE_FULL, SQLITE_CANTOPEN.
            3 | 8 | 13 | 14 => Verdict::Unavailable,
            // SQLITE_NOMEM.
            7 => Verdict::Full,
            // SQLITE_IOERR: in COMMIT, what reached the disk is unknown.
            10 => Verdict::ConnectionLost,
            // SQLITE_ERROR, _TOOBIG, _CONSTRAINT, _MISMATCH, _MISUSE, _RANGE.
            1 | 18..=21 | 25 => Verdict::Bug,
            _ => Verdict::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const STATES: &str = "ZZ001 08000 08001 08003 08004 08006 0A000 21000 22001 22003 22012 22P02 23502 23503 23505 \
        23514 25001 25006 25P02 25P03 25P04 26000 28000 28P01 34000 3D000 40001 40P01 42501 42601 42702 42703 42704 \
        42804 42809 42846 42883 42P01 42P05 42P10 44000 53000 53100 53200 53300 53400 54001 55000 55P03 57014 57P01 \
        57P02 57P03 57P04 57P05 58000 58030 P0001 XX000 XX001";

    /// The codes of each meaning, without those that no table has.
    fn listed(codes: impl Iterator<Item = Code>) -> String {
        let mut meanings: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for code in codes {
            let (verdict, limits) = (code.verdict(), code.limits_connections());
            let (undone, before) = (code.undoes_commit(), code.is_of_the_statement());
            if verdict == Verdict::Unknown && before && matches!(code, Code::Mysql(_)) {
                continue;
            }
            let meaning = format!(
                "{verdict:?}, COMMIT undone {undone}, statement undone {before}, limit {limits}"
            );
            meanings
                .entry(meaning)
                .or_default()
                .push(format!("{code:?}"));
        }
        let line =
            |(meaning, codes): (String, Vec<String>)| format!("{meaning}: {}\n", codes.join(" "));
        meanings.into_iter().map(line).collect()
    }

    #[test]
    fn each_code_has_its_verdict_before_and_in_commit() {
        let numbers = (0..=2_001).chain([2_013, 2_999]).chain(3_000..4_100);
        let mysql = numbers.chain([8_999, 9_000, 9_001, 9_999, 10_000]);
        insta::assert_snapshot!("mysql", listed(mysql.map(Code::Mysql)));
        let states = STATES.split(' ').chain([""]).map(str::to_owned);
        insta::assert_snapshot!("postgres", listed(states.map(Code::Postgres)));
        let extended = [261, 275, 516, 517, 778, 1032, 1555, 1811, 2067];
        let sqlite = (0..=30).chain(extended).map(Code::Sqlite);
        insta::assert_snapshot!("sqlite", listed(sqlite));
    }
}
