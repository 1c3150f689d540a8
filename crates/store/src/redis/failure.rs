//! The one table from Redis errors to what is to be done about them.
//!
//! A script and an `EXEC` happen entirely or not at all, so what the server refuses has not
//! happened. Where the connection is lost, whether it happened depends on what was under way.

use redis::{ErrorKind, RedisError, ServerErrorKind};
use stocklock_core::ports::Server;

use crate::StoreError;

/// What an error calls for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The connection is gone, or silent. What was under way may have happened.
    Lost,
    /// The server will not work now, or not for us: nothing happened.
    Refused,
    /// Something that should not be possible: a defect of ours, or somebody else's data.
    Bug,
}

/// Redis' own words for why a driver's error is what it is, so that callers can tell it from the
/// database's.
#[derive(Debug, thiserror::Error)]
#[error("redis: {0}")]
pub(crate) struct RedisFailure(pub(super) RedisError);

/// What `error` calls for.
pub(super) fn classify(error: &RedisError) -> Verdict {
    match error.kind() {
        ErrorKind::Io => Verdict::Lost,
        ErrorKind::Server(ServerErrorKind::ResponseError) => of_words(error.detail()),
        ErrorKind::Server(kind) => of_server(kind),
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => Verdict::Refused,
        _ => of_code(error.code().unwrap_or_default()),
    }
}

fn of_server(kind: ServerErrorKind) -> Verdict {
    match kind {
        // A replica since the failover; loading its data; part of a cluster in trouble, or one
        // that has moved the key; a MULTI with a command in it that the server refused; a user
        // without the right.
        ServerErrorKind::ReadOnly
        | ServerErrorKind::BusyLoading
        | ServerErrorKind::ClusterDown
        | ServerErrorKind::MasterDown
        | ServerErrorKind::TryAgain
        | ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::ExecAbort
        | ServerErrorKind::NoPerm
        // The text is sent when the hash is not known; here not even the text was.
        | ServerErrorKind::NoScript => Verdict::Refused,
        _ => Verdict::Bug,
    }
}

/// What comes without a code of its own: the user has no right to a command of a script (Redis 7.0).
fn of_words(detail: Option<&str>) -> Verdict {
    if detail.is_some_and(|detail| detail.contains("can't run this command")) {
        Verdict::Refused
    } else {
        Verdict::Bug
    }
}

/// The codes that the driver has no name for.
fn of_code(code: &str) -> Verdict {
    match code {
        // Out of memory (`maxmemory`); cannot save (disk full); too few replicas; a script of
        // somebody else's runs for too long; a password is missing or wrong; a consumer group, or
        // the stream that was waited for, that was lost with everything else.
        "UNBLOCKED" | "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "NOAUTH" | "WRONGPASS"
        | "NOGROUP" => Verdict::Refused,
        _ => Verdict::Bug,
    }
}

/// Whether another connection may fare better: this one is broken, or leads to a server that is a
/// replica now.
pub(super) fn is_of_the_connection(error: &RedisError) -> bool {
    classify(error) == Verdict::Lost
        || error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::Server(kind) if is_of_a_replica(kind))
        || refused_commands(error).any(is_of_a_replica)
}

fn is_of_a_replica(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown
    )
}

/// Why the commands of a transaction were refused.
fn refused_commands(error: &RedisError) -> impl Iterator<Item = ServerErrorKind> {
    let refused = error.clone().into_server_errors();
    let kinds = refused.map(|all| all.iter().filter_map(|(_, why)| why.kind()).collect());
    let kinds: Vec<_> = kinds.unwrap_or_default();
    kinds.into_iter()
}

/// What there is instead of the answer to a change. Clones tell it to all who wait for one message.
#[derive(Debug, Clone)]
pub(super) enum Failed {
    /// No connection could be had.
    Unsent(RedisError),
    /// It was sent, and this came of it.
    Unanswered(RedisError),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unsent(error) => connecting(error),
            Failed::Unanswered(error) => writing(error),
        }
    }
}

/// What an error means where no connection could be had: whatever it is, nothing was sent.
pub(super) fn connecting(error: RedisError) -> StoreError {
    StoreError::Unavailable(Server::Redis, RedisFailure(error).into())
}

/// What an error means where nothing was to be changed.
pub(super) fn reading(error: RedisError) -> StoreError {
    of(error, |source| {
        StoreError::ConnectionLost(Server::Redis, source)
    })
}

/// What an error means that came instead of the answer to a change.
pub(super) fn writing(error: RedisError) -> StoreError {
    of(error, StoreError::OutcomeUnknown)
}

fn of(
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

/// An answer that no script of ours gives.
pub(super) fn bad_answer(answer: impl std::fmt::Debug) -> StoreError {
    StoreError::Bug(format!("redis answered {answer:?}").into())
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// The error that the driver makes of a server's line.
    fn said(line: &str) -> RedisError {
        let answer = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        let value = answer.expect("a server's error is an answer");
        value.extract_error().expect_err("an error was said")
    }

    #[test]
    fn what_a_server_says() {
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
            assert_eq!(classify(&said(line)), verdict, "{line}");
        }
    }

    #[test]
    fn a_lost_connection_leaves_a_change_open_and_nothing_else() {
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
        let refused = || said("OOM command not allowed");
        assert!(matches!(writing(refused()), StoreError::Unavailable(..)));
        assert!(matches!(reading(refused()), StoreError::Unavailable(..)));
    }

    #[test]
    fn a_replica_is_left_for_another_connection() {
        assert!(is_of_the_connection(&said(
            "READONLY You can't write against a read only replica."
        )));
        assert!(!is_of_the_connection(&said("OOM command not allowed")));
    }
}
