//! The table that maps Redis errors to store errors.
//!
//! A script or an `EXEC` is executed entirely or not at all. If the server refuses one, nothing
//! changed. If the connection is lost during a write, the outcome is unknown.

use std::error::Error as _;

use redis::{ErrorKind, RedisError, ServerError};
use stocklock_core::ports::{DriverError, Server};

use crate::StoreError;

/// An error of the Redis driver, as a type that callers can tell from a database error.
#[derive(Debug, thiserror::Error)]
#[error("redis: {0}")]
pub(crate) struct RedisFailure(pub(super) RedisError);

/// Whether the server refuses the command now, so that nothing changed. Any other answer is a defect of
/// this service, or is caused by data that another program wrote.
fn is_refused(error: &RedisError) -> bool {
    match error.code().unwrap_or_default() {
        // In order: a replica after a failover; the server loads its data; a cluster that is down or
        // has moved the key; a MULTI with a refused command; out of memory; the disk is full; too few
        // replicas; another program's script runs too long; no permission; the password is missing or
        // wrong; a script was lost.
        "READONLY" | "MASTERDOWN" | "LOADING" | "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK"
        | "EXECABORT" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOPERM" | "NOAUTH"
        | "WRONGPASS" | "NOSCRIPT" => true,
        // Redis 7.0 has no code for a script that lacks a permission, or that finds a key on another node
        // before it has written anything.
        "ERR" => error.detail().is_some_and(|detail| {
            detail.contains("can't run this command") || detail.contains(NOT_LOCAL)
        }),
        _ => false,
    }
}

/// Part of the error of a script that finds a key on another node of a cluster.
const NOT_LOCAL: &str = "access a non local key";

/// Whether a node of a cluster has refused the command, because it does not have the slot now, or not all
/// of its keys.
pub(super) fn is_redirected(error: &StoreError) -> bool {
    let StoreError::Unavailable(Server::Redis, source) = error else {
        return false;
    };
    let failure = source.downcast_ref::<RedisFailure>();
    failure.is_some_and(|RedisFailure(error)| is_redirection(error))
}

/// The same for the driver's error.
pub(super) fn is_redirection(error: &RedisError) -> bool {
    any_answer(error, |answer| {
        let is_not_local = |details: &str| details.contains(NOT_LOCAL);
        matches!(answer.code(), "MOVED" | "ASK" | "TRYAGAIN")
            || answer.details().is_some_and(is_not_local)
    })
}

/// Whether a node of a cluster says that another one has the slot.
pub(super) fn is_moved(error: &StoreError) -> bool {
    let failure = error.source().and_then(|source| source.downcast_ref());
    let says_moved = |answer: &ServerError| answer.code() == "MOVED";
    failure.is_some_and(|RedisFailure(error)| any_answer(error, says_moved))
}

/// Whether this is true of one of the server's errors. In a transaction, each refused command has its own.
fn any_answer(error: &RedisError, is: impl Fn(&ServerError) -> bool) -> bool {
    let answers = error.clone().into_server_errors().unwrap_or_default();
    answers.iter().any(|(_, answer)| is(answer))
}

/// Whether the connection to the server is lost, or there is none.
pub(super) fn is_lost(error: &StoreError) -> bool {
    let failure = error.source().and_then(|source| source.downcast_ref());
    failure.is_some_and(|RedisFailure(error)| is_connection_error(error))
}

/// Whether a new connection may help: this one broke, or its server is a replica now.
pub(super) fn is_connection_error(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Io
        || error.is_unrecoverable_error()
        || any_answer(error, |answer| {
            matches!(answer.code(), "READONLY" | "MASTERDOWN")
        })
}

/// Why a script has no reply. It is cloned for each deduction of a batch.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// There was no connection, so the script was not sent.
    NotSent(RedisError),
    /// Every connection for it was busy, so it was not sent.
    Exhausted,
    /// The script was sent, and this error came back.
    Unanswered(RedisError),
    /// The script was executed, and too few replicas are known to have what it wrote.
    NotReplicated(RedisError),
}

impl Failed {
    /// The error of the driver.
    pub(super) fn error(&self) -> Option<&RedisError> {
        match self {
            Self::NotSent(error) | Self::Unanswered(error) | Self::NotReplicated(error) => {
                Some(error)
            }
            Self::Exhausted => None,
        }
    }

    /// Converts the error of a script that changes nothing.
    pub(super) fn reading(self) -> StoreError {
        match self {
            Self::Unanswered(error) => reading(error),
            other => other.writing(),
        }
    }

    /// Converts the error of a script that writes.
    pub(super) fn writing(self) -> StoreError {
        match self {
            Self::NotSent(error) => connecting(error),
            Self::Exhausted => StoreError::RedisExhausted,
            Self::Unanswered(error) => writing(error),
            Self::NotReplicated(error) => StoreError::outcome_unknown(RedisFailure(error)),
        }
    }
}

/// Converts an error from connecting: nothing was sent.
pub(super) fn connecting(error: RedisError) -> StoreError {
    StoreError::Unavailable(Server::Redis, RedisFailure(error).into())
}

/// Converts an error from a read.
pub(super) fn reading(error: RedisError) -> StoreError {
    let lost = |source| StoreError::ConnectionLost(Server::Redis, source);
    answered_or(lost, error)
}

/// Converts an error from a write.
pub(super) fn writing(error: RedisError) -> StoreError {
    answered_or(StoreError::outcome_unknown, error)
}

/// Converts an error of the server, or calls `lost` if the connection broke or timed out.
fn answered_or(lost: impl Fn(DriverError) -> StoreError, error: RedisError) -> StoreError {
    let (is_lost, is_refused) = (error.kind() == ErrorKind::Io, is_refused(&error));
    let source = RedisFailure(error).into();
    if is_lost {
        lost(source)
    } else if is_refused {
        StoreError::Unavailable(Server::Redis, source)
    } else {
        StoreError::Bug(source)
    }
}

/// Converts the text of a server's error within the answer of a script, which has changed nothing.
pub(super) fn refused(text: &str) -> StoreError {
    let error = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
    match error.and_then(redis::Value::extract_error) {
        Ok(_) => bad_answer(text),
        Err(error) => reading(error),
    }
}

/// An answer that no script gives.
pub(super) fn bad_answer(answer: impl std::fmt::Debug) -> StoreError {
    StoreError::Bug(format!("redis answered {answer:?}").into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The driver's error for a line of the server.
    fn server_error(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let value = answer.expect("a server's error is an answer");
        value.extract_error().expect_err("the line is an error")
    }

    #[test]
    fn each_server_error_has_its_verdict() {
        for line in [
            "READONLY You can't write against a read only replica.",
            "LOADING Redis is loading the dataset in memory",
            "CLUSTERDOWN The cluster is down",
            "MASTERDOWN Link with MASTER is down",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            "MOVED 3999 127.0.0.1:6381",
            "ASK 3999 127.0.0.1:6381",
            "EXECABORT Transaction discarded because of previous errors.",
            "NOSCRIPT No matching script. Please use EVAL.",
            "NOPERM this user has no permissions",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots",
            "NOREPLICAS Not enough good replicas to write.",
            "BUSY Redis is busy running a script.",
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair",
            "ERR The user executing the script can't run this command or subcommand",
            "ERR Script attempted to access a non local key in a cluster node script: 1f",
        ] {
            let error = writing(server_error(line));
            assert!(matches!(error, StoreError::Unavailable(..)), "{line}");
            let moved = ["TRYAGAIN", "MOVED", "ASK", "ERR Script attempted"];
            let moved = moved.iter().any(|code| line.starts_with(code));
            assert_eq!(is_redirected(&error), moved, "{line}");
        }
        for line in [
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "CROSSSLOT Keys in request don't hash to the same slot",
            "ERR unknown command",
        ] {
            let error = writing(server_error(line));
            assert!(matches!(error, StoreError::Bug(_)), "{line}");
        }
    }

    #[test]
    fn lost_connection_makes_only_writes_unknown() {
        let lost = || RedisError::from(io::Error::from(io::ErrorKind::TimedOut));
        assert!(matches!(writing(lost()), StoreError::OutcomeUnknown(..)));
        assert!(is_lost(&writing(lost())) && !is_redirected(&writing(lost())));
        assert!(matches!(reading(lost()), StoreError::ConnectionLost(..)));
        assert!(matches!(connecting(lost()), StoreError::Unavailable(..)));
        let refused = server_error("OOM command not allowed");
        assert!(matches!(reading(refused), StoreError::Unavailable(..)));
    }

    #[test]
    fn read_only_replica_is_a_connection_error() {
        let read_only = server_error("READONLY You can't write against a read only replica.");
        assert!(is_connection_error(&read_only));
        assert!(!is_connection_error(&server_error("OOM not allowed")));
    }
}
