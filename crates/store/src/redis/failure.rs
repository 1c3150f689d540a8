//! The table that maps Redis errors to store errors.
//!
//! A script or an `EXEC` is executed entirely or not at all. If the server refuses one, nothing
//! changed. If the connection is lost during a write, the outcome is unknown.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use stocklock_core::ports::Server;

use crate::StoreError;

/// The class of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection broke or timed out. A write may have been executed.
    Lost,
    /// The server refuses the command now. Nothing changed.
    Refused,
    /// A defect of this service, or data that another program wrote.
    Bug,
}

/// An error of the Redis driver, as a type that callers can tell from a database error.
#[derive(Debug, thiserror::Error)]
#[error("redis: {0}")]
pub(crate) struct RedisFailure(pub(super) RedisError);

/// Classifies an error.
pub(super) fn classify(error: &RedisError) -> Verdict {
    match error.kind() {
        ErrorKind::Io => Verdict::Lost,
        ErrorKind::Server(ServerErrorKind::ResponseError) => classify_text(error.detail()),
        ErrorKind::Server(kind) => classify_server(kind),
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Verdict::Refused,
        _ => classify_code(error.code().unwrap_or_default()),
    }
}

fn classify_server(kind: ServerErrorKind) -> Verdict {
    match kind {
        // In order: a replica after a failover; the server is loading its data; a cluster that is
        // down or has moved the key; a MULTI with a refused command; a user without permission.
        ServerErrorKind::ReadOnly
        | ServerErrorKind::BusyLoading
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::TryAgain
        | ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::ExecAbort
        | ServerErrorKind::NoPerm
        // EVAL followed EVALSHA, and the server does not know the script even so.
        | ServerErrorKind::NoScript => Verdict::Refused,
        _ => Verdict::Bug,
    }
}

/// Classifies an error without a code. Redis 7.0 sends one if a script lacks a permission.
fn classify_text(detail: Option<&str>) -> Verdict {
    if detail.is_some_and(|detail| detail.contains("can't run this command")) {
        Verdict::Refused
    } else {
        Verdict::Bug
    }
}

/// Classifies the codes that the driver does not know.
fn classify_code(code: &str) -> Verdict {
    match code {
        // Out of memory; the disk is full; too few replicas; another program's script runs too
        // long; the password is missing or wrong; the consumer group or the stream was lost.
        "UNBLOCKED" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOAUTH" | "WRONGPASS"
        | "NOGROUP" => Verdict::Refused,
        _ => Verdict::Bug,
    }
}

/// Whether a new connection may help: this one broke, or its server is a replica now.
pub(super) fn is_connection_error(error: &RedisError) -> bool {
    classify(error) == Verdict::Lost
        || error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::Server(kind) if is_replica_error(kind))
        || refused_commands(error).any(is_replica_error)
}

fn is_replica_error(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown
    )
}

/// The errors of a transaction's commands.
fn refused_commands(error: &RedisError) -> impl Iterator<Item = ServerErrorKind> {
    let refused = error.clone().into_server_errors();
    let kinds = refused.map(|all| all.iter().filter_map(|(_, why)| why.kind()).collect());
    let kinds: Vec<_> = kinds.unwrap_or_default();
    kinds.into_iter()
}

/// Why a write has no reply. It is cloned for each deduction of a batch.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// There was no connection, so the write was not sent.
    NotSent(RedisError),
    /// The write was sent, and this error came back.
    Unanswered(RedisError),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::NotSent(error) => connecting(error),
            Failed::Unanswered(error) => writing(error),
        }
    }
}

/// Converts an error from connecting: nothing was sent.
pub(super) fn connecting(error: RedisError) -> StoreError {
    StoreError::Unavailable(Server::Redis, RedisFailure(error).into())
}

/// Converts an error from a read.
pub(super) fn reading(error: RedisError) -> StoreError {
    to_store_error(error, |source| {
        StoreError::ConnectionLost(Server::Redis, source)
    })
}

/// Converts an error from a write.
pub(super) fn writing(error: RedisError) -> StoreError {
    to_store_error(error, StoreError::OutcomeUnknown)
}

fn to_store_error(
    error: RedisError,
    lost: impl Fn(stocklock_core::ports::DriverError) -> StoreError,
) -> StoreError {
    let verdict = classify(&error);
    let source = RedisFailure(error).into();
    match verdict {
        Verdict::Lost => lost(source),
        Verdict::Refused => StoreError::Unavailable(Server::Redis, source),
        Verdict::Bug => StoreError::Bug(source),
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
        for (line, verdict) in [
            (
                "READONLY You can't write against a read only replica.",
                Verdict::Refused,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                Verdict::Refused,
            ),
            ("CLUSTERDOWN The cluster is down", Verdict::Refused),
            ("MASTERDOWN Link with MASTER is down", Verdict::Refused),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Verdict::Refused,
            ),
            ("MOVED 3999 127.0.0.1:6381", Verdict::Refused),
            ("ASK 3999 127.0.0.1:6381", Verdict::Refused),
            (
                "EXECABORT Transaction discarded because of previous errors.",
                Verdict::Refused,
            ),
            (
                "NOSCRIPT No matching script. Please use EVAL.",
                Verdict::Refused,
            ),
            ("NOPERM this user has no permissions", Verdict::Refused),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Verdict::Refused,
            ),
            (
                "MISCONF Redis is configured to save RDB snapshots",
                Verdict::Refused,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                Verdict::Refused,
            ),
            ("BUSY Redis is busy running a script.", Verdict::Refused),
            ("NOAUTH Authentication required.", Verdict::Refused),
            ("WRONGPASS invalid username-password pair", Verdict::Refused),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                Verdict::Bug,
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                Verdict::Bug,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Verdict::Refused,
            ),
            ("NOGROUP No such key", Verdict::Refused),
            ("ERR unknown command", Verdict::Bug),
        ] {
            assert_eq!(classify(&server_error(line)), verdict, "{line}");
        }
    }

    #[test]
    fn lost_connection_makes_only_writes_unknown() {
        for kind in [
            io::ErrorKind::UnexpectedEof,
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
        ] {
            let lost = || RedisError::from(io::Error::from(kind));
            assert!(
                matches!(writing(lost()), StoreError::OutcomeUnknown(_)),
                "{kind}"
            );
            assert!(
                matches!(reading(lost()), StoreError::ConnectionLost(..)),
                "{kind}"
            );
            assert!(
                matches!(connecting(lost()), StoreError::Unavailable(..)),
                "{kind}"
            );
        }
        let refused = || server_error("OOM command not allowed");
        assert!(matches!(writing(refused()), StoreError::Unavailable(..)));
        assert!(matches!(reading(refused()), StoreError::Unavailable(..)));
    }

    #[test]
    fn read_only_replica_is_a_connection_error() {
        assert!(is_connection_error(&server_error(
            "READONLY You can't write against a read only replica."
        )));
        assert!(!is_connection_error(&server_error(
            "OOM command not allowed"
        )));
    }
}
