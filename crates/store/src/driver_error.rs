//! The one table from driver errors to what is to be done about them.
//!
//! Before COMMIT was sent nothing can have been committed; in it, only what is known to undo it
//! leaves nothing behind. A statement that commits as it ends is in doubt once nothing is heard of
//! it. The databases' own numbers are in `code`.

use sqlx::error::DatabaseError;
use sqlx::postgres::PgDatabaseError;
use stocklock_core::ports::Server;

use super::StoreError;

mod code;

use code::Code;

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

/// What a store answers for `error` before COMMIT was sent, where the statement expected neither a
/// duplicate nor a violated CHECK: nothing happened.
pub(super) fn before_commit(error: sqlx::Error) -> StoreError {
    let verdict = classify(&error);
    let source = Box::new(error);
    match verdict {
        Verdict::RetryTransaction => StoreError::Aborted(source),
        Verdict::RollBackThenRetry => StoreError::LockWait(source),
        Verdict::TooSlow => StoreError::TooSlow(source),
        Verdict::ConnectionLost => StoreError::ConnectionLost(Server::Database, source),
        Verdict::Unavailable | Verdict::PoolTimedOut => {
            StoreError::Unavailable(Server::Database, source)
        }
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

/// What a store answers for `error` from a statement that commits as it ends, where it expected
/// neither a duplicate nor a violated CHECK. What the server says of the statement, it says before
/// it commits; where it says that it goes, or nothing at all, the commit may have happened.
pub(super) fn in_autocommit(error: sqlx::Error) -> StoreError {
    let code = error.as_database_error().map(Code::of);
    if code.is_some_and(|code| code.is_of_the_statement()) {
        before_commit(error)
    } else {
        StoreError::OutcomeUnknown(Box::new(error))
    }
}

/// Whether `PostgreSQL` gave up waiting for another transaction that is recording the same key, and
/// not for the level's row: only the former wait names an index of the ledger's.
pub(super) fn waited_for_the_ledger(error: &sqlx::Error) -> bool {
    let postgres = error
        .as_database_error()
        .and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    classify(error) == Verdict::RollBackThenRetry
        && postgres
            .and_then(PgDatabaseError::r#where)
            .is_some_and(|context| context.contains("movement"))
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::error::Error;
    use std::io;

    use sqlx::error::ErrorKind;

    use super::*;

    #[test]
    fn a_lost_connection_leaves_the_outcome_open_only_in_commit() {
        let lost = || sqlx::Error::Io(io::ErrorKind::UnexpectedEof.into());
        let before = before_commit(lost());
        assert!(matches!(before, StoreError::ConnectionLost(..)));
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
        assert!(matches!(before("40001"), StoreError::Aborted(_)));
        assert!(matches!(within("40001"), StoreError::Aborted(_)));
        assert!(matches!(before("55P03"), StoreError::LockWait(_)));
        assert!(matches!(within("55P03"), StoreError::OutcomeUnknown(_)));
        assert!(matches!(before("53100"), StoreError::Unavailable(..)));
        assert!(matches!(within("53100"), StoreError::OutcomeUnknown(_)));
        assert!(matches!(before("XX000"), StoreError::Bug(_)));
        assert!(matches!(within("XX000"), StoreError::OutcomeUnknown(_)));
    }

    #[test]
    fn a_statement_that_commits_by_itself_is_in_doubt_only_where_the_server_goes_or_says_nothing() {
        let answered = |state| in_autocommit(sqlx::Error::Database(Box::new(Answer(state))));
        assert!(matches!(answered("40P01"), StoreError::Aborted(_)));
        assert!(matches!(answered("55P03"), StoreError::LockWait(_)));
        assert!(matches!(answered("57014"), StoreError::TooSlow(_)));
        assert!(matches!(answered("25006"), StoreError::Unavailable(..)));
        assert!(matches!(answered("42P01"), StoreError::Bug(_)));
        for state in ["", "08006", "57P01", "57P02", "58030", "XX000"] {
            let answer = answered(state);
            assert!(matches!(answer, StoreError::OutcomeUnknown(_)), "{state}");
        }
        let lost = in_autocommit(sqlx::Error::Io(io::ErrorKind::ConnectionReset.into()));
        assert!(matches!(lost, StoreError::OutcomeUnknown(_)));
    }

    #[test]
    fn a_pool_that_yields_no_connection_is_unavailable_unless_it_is_known_to_be_busy() {
        let away = before_commit(sqlx::Error::PoolTimedOut);
        assert!(matches!(away, StoreError::Unavailable(..)));
    }
}
