//! The one table from driver errors to what is to be done about them.
//!
//! Codes are those that sqlx yields: the error number for MariaDB/`MySQL`, the SQLSTATE for
//! `PostgreSQL`, the extended result code for `SQLite`. Before COMMIT was sent
//! nothing can have been committed; in it, only what is known to undo it leaves nothing behind.

use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;
use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

use super::StoreError;

/// What an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The transaction was rolled back by the server (deadlock, serialization): run it again.
    RetryTransaction,
    /// The statement gave up waiting for a lock; roll back, then run it again if time is left.
    RollBackThenRetry,
    /// The server ended the statement, which took too long by itself: nobody else was faster.
    TooSlow,
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

/// A database's own number for what happened.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Code {
    Mysql(u16),
    Postgres(String),
    /// The extended result code.
    Sqlite(i32),
}

/// What `error` calls for.
#[must_use]
pub fn classify(error: &sqlx::Error) -> Verdict {
    match error {
        sqlx::Error::Database(database) if ended_in_a_lock_wait(&**database) => {
            Verdict::RollBackThenRetry
        }
        sqlx::Error::Database(database) => Code::of(&**database).verdict(),
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

/// Whether `PostgreSQL` ended a statement while it waited for a row's holder. Where several wait,
/// one statement waits twice, for its turn and for the holder, and each wait has the lock's
/// time-out anew; so the statement's may come first. Only such a wait gives the error a context,
/// whose words depend on the server's language.
fn ended_in_a_lock_wait(error: &dyn DatabaseError) -> bool {
    let postgres = error.try_downcast_ref::<PgDatabaseError>();
    postgres.is_some_and(|error| error.code() == "57014" && error.r#where().is_some())
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

    fn verdict(&self) -> Verdict {
        match self {
            Self::Mysql(number) => mysql_verdict(*number),
            Self::Postgres(sqlstate) => postgres_verdict(sqlstate),
            Self::Sqlite(extended) => sqlite_verdict(*extended),
        }
    }

    /// Whether a COMMIT that is answered so is known to have been undone.
    ///
    /// A list of what is known, since all the rest may come after the log was written: the server
    /// that is killed there, or shut down, or loses its cluster, or its disk.
    fn undoes_commit(&self) -> bool {
        match self {
            // Deadlock; with Galera, a transaction that failed certification.
            Self::Mysql(number) => *number == 1213,
            Self::Postgres(sqlstate) => matches!(sqlstate.as_str(), "40001" | "40P01"),
            // SQLITE_BUSY and its kin, SQLITE_FULL.
            Self::Sqlite(extended) => matches!(extended & 0xff, 5 | 13),
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
        // Statement time-out, or an administrator's word.
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

/// What a store answers for `error` before COMMIT was sent, where the statement expected neither a
/// duplicate nor a violated CHECK: nothing happened.
pub(super) fn before_commit(error: sqlx::Error) -> StoreError {
    let verdict = classify(&error);
    let source = Box::new(error);
    match verdict {
        Verdict::RetryTransaction => StoreError::Conflict(source),
        Verdict::RollBackThenRetry => StoreError::LockWait(source),
        Verdict::TooSlow => StoreError::TooSlow(source),
        Verdict::ConnectionLost => StoreError::ConnectionLost(source),
        Verdict::Unavailable | Verdict::PoolTimedOut => StoreError::Unavailable(source),
        Verdict::Duplicate | Verdict::CheckViolated | Verdict::Bug => StoreError::Bug(source),
    }
}

/// What a store answers for `error` from COMMIT: unless the database is known to have undone it,
/// whatever it says, it may have happened.
pub(super) fn in_commit(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().map(Code::of);
    if code.is_some_and(|code| code.undoes_commit()) {
        before_commit(error)
    } else {
        StoreError::OutcomeUnknown(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error;
    use std::io;

    use sqlx::error::ErrorKind;

    use super::*;

    #[test]
    fn mysql_numbers() {
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
    fn postgres_states() {
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
        let before = before_commit(lost());
        assert!(matches!(before, StoreError::ConnectionLost(_)));
        for error in [
            lost(),
            sqlx::Error::Protocol("expected a packet".to_owned()),
            sqlx::Error::WorkerCrashed,
            sqlx::Error::Tls("cut".into()),
            sqlx::Error::RowNotFound,
        ] {
            let after = in_commit(error);
            assert!(matches!(after, StoreError::OutcomeUnknown(_)), "{after:?}");
        }
        let protocol = sqlx::Error::Protocol("expected a packet".to_owned());
        assert_eq!(classify(&protocol), Verdict::ConnectionLost);
    }

    #[test]
    fn only_what_is_known_to_undo_a_commit_says_that_nothing_happened() {
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

    /// A database's error; as far as [`Code`] can see, one of `PostgreSQL`.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Answer(&'static str);

    impl DatabaseError for Answer {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn one_answer_means_one_thing_before_commit_and_another_in_it() {
        let before = |state| before_commit(sqlx::Error::Database(Box::new(Answer(state))));
        let within = |state| in_commit(sqlx::Error::Database(Box::new(Answer(state))));
        assert!(matches!(before("40001"), StoreError::Conflict(_)));
        assert!(matches!(within("40001"), StoreError::Conflict(_)));
        assert!(matches!(before("55P03"), StoreError::LockWait(_)));
        assert!(matches!(within("55P03"), StoreError::OutcomeUnknown(_)));
        assert!(matches!(before("53100"), StoreError::Unavailable(_)));
        assert!(matches!(within("53100"), StoreError::OutcomeUnknown(_)));
        assert!(matches!(before("XX000"), StoreError::Bug(_)));
        assert!(matches!(within("XX000"), StoreError::OutcomeUnknown(_)));
    }

    #[test]
    fn a_pool_that_yields_no_connection_is_unavailable_unless_it_is_known_to_be_busy() {
        let away = before_commit(sqlx::Error::PoolTimedOut);
        assert!(matches!(away, StoreError::Unavailable(_)));
    }
}
