//! Errors, and the reasons for the loss of a lock.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Why a lock was not acquired, or can no longer be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another task or client held the lock until the wait limit.
    #[error("the lock was not free within {waited:?}; another holder kept it")]
    WaitLimit {
        /// How long the acquisition waited.
        waited: Duration,
    },
    /// The lock server could not be reached, did not answer in time, or refused the request.
    #[error("the lock server is unavailable: {0}")]
    Unavailable(BackendError),
    /// The guard no longer holds the lock.
    #[error("the lock was lost: {reason}")]
    Lost {
        /// Why the lock was lost.
        reason: LostReason,
    },
    /// The lock already has the maximum number of guards.
    #[error("the lock has {limit} guards, which is the maximum; release one of them first")]
    ReentryLimit {
        /// The maximum number of guards for one lock.
        limit: usize,
    },
    /// The name is empty or too long.
    #[error("a lock name must have 1 to {limit} bytes")]
    InvalidName {
        /// The maximum length in bytes.
        limit: usize,
    },
    /// There can never be so many permits, or there are fewer than that since the request began to wait.
    #[error("{take} of {of} permits are impossible; take at least 1 and at most {of}")]
    InvalidPermits {
        /// How many were wanted.
        take: u32,
        /// How many there are.
        of: u32,
    },
    /// The back end has exclusive locks only.
    #[error("{server} has exclusive locks only: no read-write locks, permits, numbers or latches")]
    Unsupported {
        /// The kind of server.
        server: &'static str,
    },
    /// A latch did not open, or the participants of a barrier did not come or leave, within the limit.
    #[error("not all participants arrived or left within {limit:?}")]
    Incomplete {
        /// How long the call waited at most.
        limit: Duration,
    },
    /// The manager was shut down.
    #[error("the lock manager was shut down")]
    Shutdown,
}

/// Why a guard no longer holds its lock. The first reason is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease expired before a renewal was known to have succeeded.
    Expired,
    /// The server no longer knows this holder: the lock was deleted, evicted, flushed or expired,
    /// and another client may hold it.
    Stolen,
    /// The lock was taken away with [`LockBuilder::revoke`](crate::LockBuilder::revoke), and another client
    /// may hold it. On a Redis Cluster, the reason may be `Stolen` while the slot of the lock moves to another
    /// master.
    Revoked,
    /// The server ended the session that held the lock.
    SessionExpired,
    /// The lock was held for `max_hold`.
    MaxHold,
    /// The lock was renewed `max_renewals` times, and then expired.
    MaxRenewals,
    /// The manager was shut down while the guard existed.
    Shutdown,
    /// The guard was released or dropped. This is not counted as a loss. It ends every wait for
    /// [`lost`](crate::LockGuard::lost).
    Released,
}

impl LostReason {
    /// Returns a stable lower-case name for metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Stolen => "stolen",
            Self::Revoked => "revoked",
            Self::SessionExpired => "session-expired",
            Self::MaxHold => "max-hold",
            Self::MaxRenewals => "max-renewals",
            Self::Shutdown => "shutdown",
            Self::Released => "released",
        }
    }
}

impl Display for LostReason {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Expired => "its lease expired before a renewal succeeded",
            Self::Stolen => "the server no longer knows this holder",
            Self::Revoked => "it was taken away (revoke)",
            Self::SessionExpired => "the server ended the session",
            Self::MaxHold => "it was held for the maximum time (max_hold)",
            Self::MaxRenewals => "it was renewed the maximum number of times (max_renewals)",
            Self::Shutdown => "the lock manager was shut down",
            Self::Released => "it was released",
        })
    }
}

/// A request to the lock server failed, and may or may not have been executed.
///
/// The message is one line: the kind of server, the request, and the cause with its own causes. It
/// contains no password or other secret of the connection.
#[derive(Debug, Clone)]
pub struct BackendError {
    request: Option<RequestContext>,
    cause: Arc<dyn Error + Send + Sync>,
    permanent: bool,
    /// The request was not executed, and will not be: the server refused it, or it was not sent.
    refused: bool,
    /// It was refused, but a repetition may succeed at once.
    passing: bool,
}

#[derive(Debug, Clone)]
struct RequestContext {
    server: &'static str,
    request: String,
}

impl BackendError {
    /// Creates an error that may pass: a repeated request may succeed.
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            request: None,
            cause: cause.into().into(),
            permanent: false,
            refused: false,
            passing: false,
        }
    }

    /// Creates an error that stays until an operator fixes its cause.
    pub fn permanent(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            permanent: true,
            ..Self::transient(cause)
        }
    }

    /// Returns true if a repeated request would fail too.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Returns the cause. The message already contains it, so it is not [`Error::source`]: an error
    /// reporter would print it twice.
    #[must_use]
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.cause
    }

    /// Marks a request that the server refused, or that was not sent.
    pub(crate) fn refused(self) -> Self {
        Self {
            refused: true,
            ..self
        }
    }

    /// Marks a refused request that may succeed at once when it is repeated: over a new connection, or after a deadlock.
    #[cfg(any(feature = "redis", feature = "sql"))]
    pub(crate) fn refused_for_now(self) -> Self {
        Self {
            passing: true,
            ..self.refused()
        }
    }

    /// Marks the error as no refusal: an earlier request of the operation was executed.
    #[cfg(feature = "redis")]
    pub(crate) fn after_execution(self) -> Self {
        Self {
            refused: false,
            passing: false,
            ..self
        }
    }

    /// The acquisition was released, so its later requests get no lock.
    pub(crate) fn already_released() -> Self {
        Self::permanent("this acquisition was already released").refused()
    }

    /// Returns true if the request was not executed, and will not be. It needs no release.
    pub(crate) const fn is_refusal(&self) -> bool {
        self.refused
    }

    /// Returns true if a refused request may succeed at once when it is repeated.
    pub(crate) const fn may_pass_at_once(&self) -> bool {
        self.passing
    }

    /// Adds the kind of server and the request to the message.
    pub(crate) fn with_request(mut self, server: &'static str, request: impl Into<String>) -> Self {
        let request = request.into();
        self.request = Some(RequestContext { server, request });
        self
    }
}

impl Error for BackendError {}

/// Returns true unless the request may still arrive: a refusal is an answer.
pub(crate) fn was_answered<T>(answer: &Result<T, BackendError>) -> bool {
    answer.as_ref().err().is_none_or(BackendError::is_refusal)
}

impl Display for BackendError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if let Some(RequestContext { server, request }) = &self.request {
            write!(formatter, "{server}: {request}: ")?;
        }
        let mut message = self.cause.to_string();
        let mut next = self.cause.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Many errors already contain the message of their cause.
            if !message.contains(&text) {
                message = format!("{message}: {text}");
            }
            next = cause.source();
        }
        let lines: Vec<_> = message.lines().map(str::trim).collect();
        formatter.write_str(&lines.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{BackendError, LockError};

    #[derive(Debug, thiserror::Error)]
    #[error("not connected\r\n  at all")]
    struct Outer(#[source] io::Error);

    #[test]
    fn message_is_one_line_with_each_cause_once() {
        let refused = Outer(io::Error::other("refused"));
        let error = BackendError::transient(refused).with_request("redis", "acquire \"a\"");
        let error = LockError::Unavailable(error);
        let text =
            "the lock server is unavailable: redis: acquire \"a\": not connected at all: refused";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
        let repeated = io::Error::other(io::Error::other("refused"));
        assert_eq!(BackendError::transient(repeated).to_string(), "refused");
    }
}
