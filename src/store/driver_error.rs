//! The one table from driver errors to what is to be done about them.
//!
//! Codes are those that sqlx yields: the error number for MariaDB/`MySQL`, the SQLSTATE for
//! `PostgreSQL`, the extended result code for `SQLite`. Whether a lost connection leaves the
//! outcome open depends on the phase: before COMMIT was sent, nothing can have been committed.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::sqlite::SqliteError;

use super::StoreError;

/// What an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The transaction was rolled back by the server (deadlock, serialization): run it again.
    RetryTransaction,
    /// The statement gave up waiting for a lock; roll back, then run it again if time is left.
    RollBackThenRetry,
    /// The connection is gone. In COMMIT the outcome is unknown; before, run it again.
    ConnectionLost,
    /// The server is away, is starting, or refuses to write.
    Unavailable,
    /// No connection came free in time: exhausted when all are busy, else unavailable.
    PoolTimedOut,
    /// A unique index has the row already: look what it is, then replay.
    Duplicate,
    /// The CHECK constraint on the level refused it: too little stock.
    CheckViolated,
    /// None of these: a defect of ours, or something nobody foresaw.
    Bug,
}

/// Whether COMMIT had been sent when the error came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before: nothing is committed.
    Body,
    /// In it.
    Commit,
}

/// What `error` calls for.
#[must_use]
pub fn classify(error: &sqlx::Error) -> Verdict {
    match error {
        sqlx::Error::Database(database) => classify_database(&**database),
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::BeginFailed => {
            Verdict::ConnectionLost
        }
        sqlx::Error::PoolTimedOut => Verdict::PoolTimedOut,
        sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed | sqlx::Error::Tls(_) => {
            Verdict::Unavailable
        }
        _ => Verdict::Bug,
    }
}

fn classify_database(error: &dyn DatabaseError) -> Verdict {
    if let Some(mysql) = error.try_downcast_ref::<MySqlDatabaseError>() {
        return mysql_verdict(mysql.number());
    }
    let code = error.code().unwrap_or_default();
    if error.try_downcast_ref::<SqliteError>().is_some() {
        return sqlite_verdict(code.parse().unwrap_or_default());
    }
    postgres_verdict(&code)
}

fn mysql_verdict(number: u16) -> Verdict {
    match number {
        // Deadlock; row changed since it was read (MariaDB); query interrupted.
        1213 | 1020 | 1317 => Verdict::RetryTransaction,
        // Lock wait time-out; statement time-outs of MariaDB and MySQL.
        1205 | 1969 | 3024 => Verdict::RollBackThenRetry,
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
        // Lock not available; statement time-out.
        "55P03" | "57014" => Verdict::RollBackThenRetry,
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
        // SQLITE_BUSY_SNAPSHOT: a read transaction that cannot become a writing one.
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

/// What a store answers for `error`, where the statement expected neither a duplicate nor a
/// violated CHECK. `busy` tells whether all connections of the pool are in use.
pub(super) fn store_error(error: sqlx::Error, phase: Phase, busy: bool) -> StoreError {
    let verdict = classify(&error);
    let source = Box::new(error);
    match (verdict, phase) {
        (Verdict::RetryTransaction, _) => StoreError::Conflict(source),
        (Verdict::ConnectionLost, Phase::Body) => StoreError::ConnectionLost(source),
        (Verdict::RollBackThenRetry, _) => StoreError::LockWait(source),
        // A worker that died in COMMIT is as silent as a connection that was cut there.
        (Verdict::ConnectionLost, Phase::Commit) => StoreError::OutcomeUnknown(source),
        (Verdict::Unavailable, Phase::Commit)
            if matches!(*source, sqlx::Error::WorkerCrashed | sqlx::Error::Tls(_)) =>
        {
            StoreError::OutcomeUnknown(source)
        }
        (Verdict::PoolTimedOut, _) if busy => StoreError::Exhausted,
        (Verdict::Unavailable | Verdict::PoolTimedOut, _) => StoreError::Unavailable(source),
        (Verdict::Duplicate | Verdict::CheckViolated | Verdict::Bug, _) => StoreError::Bug(source),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn mysql_numbers() {
        for (number, verdict) in [
            (1213, Verdict::RetryTransaction),
            (1020, Verdict::RetryTransaction),
            (1205, Verdict::RollBackThenRetry),
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
    fn postgres_states() {
        for (state, verdict) in [
            ("40001", Verdict::RetryTransaction),
            ("40P01", Verdict::RetryTransaction),
            ("55P03", Verdict::RollBackThenRetry),
            ("57014", Verdict::RollBackThenRetry),
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
    fn sqlite_codes() {
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
    fn a_lost_connection_leaves_the_outcome_open_only_in_commit() {
        let lost = || sqlx::Error::Io(io::ErrorKind::UnexpectedEof.into());
        assert!(matches!(
            store_error(lost(), Phase::Body, false),
            StoreError::ConnectionLost(_)
        ));
        assert!(matches!(
            store_error(lost(), Phase::Commit, false),
            StoreError::OutcomeUnknown(_)
        ));
        let protocol = sqlx::Error::Protocol("expected a packet".to_owned());
        assert_eq!(classify(&protocol), Verdict::ConnectionLost);
    }

    #[test]
    fn a_pool_without_a_free_connection_is_exhausted_only_when_all_are_busy() {
        let timed_out = || sqlx::Error::PoolTimedOut;
        assert!(matches!(
            store_error(timed_out(), Phase::Body, true),
            StoreError::Exhausted
        ));
        let away = store_error(timed_out(), Phase::Body, false);
        assert!(matches!(away, StoreError::Unavailable(_)));
    }
}
