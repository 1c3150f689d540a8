//! What can go wrong, and why a lock was lost.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

/// Why a lock was not acquired, or can no longer be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LockError {
    /// Others held the lock for as long as this one could wait.
    #[error("the lock was not free within {waited:?}")]
    WaitLimit {
        /// How long it waited.
        waited: Duration,
    },
    /// The lock server could not be asked, or did not answer in time.
    #[error("the lock server is unavailable: {0}")]
    Unavailable(BackendError),
    /// The guard no longer holds the lock.
    #[error("the lock was lost: {reason}")]
    Lost {
        /// Why.
        reason: LostReason,
    },
    /// The guard has as many children as it may have.
    #[error("the lock was entered {limit} times already")]
    ReentryLimit {
        /// How many guards may share one lock.
        limit: usize,
    },
    /// The name is empty or too long.
    #[error("the name of a lock has 1 to {limit} bytes")]
    InvalidName {
        /// The greatest length in bytes.
        limit: usize,
    },
    /// The manager was shut down.
    #[error("the lock manager was shut down")]
    Shutdown,
}

/// Why a guard does not hold its lock any more. The first reason stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease ran out without a renewal that was known to have succeeded.
    Expired,
    /// The server says that the lock is somebody else's, or nobody's: it was evicted, flushed,
    /// deleted or had run out.
    Stolen,
    /// The server ended the session that the lock lived in.
    SessionExpired,
    /// The lock was held for as long as `max_hold` allows.
    MaxHold,
    /// It was renewed as often as `max_renewals` allows, and then ran out.
    MaxRenewals,
    /// The manager was shut down while the guard was alive.
    Shutdown,
    /// The guard was released or dropped. No loss, and not counted as one: what still waits for
    /// [`lost`](crate::LockGuard::lost) learns that nothing is protected any more.
    Released,
}

impl LostReason {
    /// A name for metrics: lower case, stable.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Stolen => "stolen",
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
            Self::Expired => "its lease ran out",
            Self::Stolen => "the server knows another holder, or none",
            Self::SessionExpired => "its session expired",
            Self::MaxHold => "it was held for as long as it may be",
            Self::MaxRenewals => "it was renewed as often as it may be",
            Self::Shutdown => "the lock manager was shut down",
            Self::Released => "it was released",
        })
    }
}

/// What a back end answers when it has no answer: the request may or may not have been carried out.
///
/// Its text is one line for who runs the service: the kind of server, what it was asked, and why
/// there is no answer, with all causes of that. No secret of the connection is in it.
#[derive(Debug, Clone)]
pub struct BackendError {
    asked: Option<Asked>,
    cause: Arc<dyn Error + Send + Sync>,
    permanent: bool,
}

#[derive(Debug, Clone)]
struct Asked {
    server: &'static str,
    what: String,
}

impl BackendError {
    /// A failure that may pass: asking again within the wait limit makes sense.
    pub fn transient(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            asked: None,
            cause: cause.into().into(),
            permanent: false,
        }
    }

    /// A failure that stays until somebody changes the configuration.
    pub fn permanent(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self {
            permanent: true,
            ..Self::transient(cause)
        }
    }

    /// Whether it makes no sense to ask again.
    #[must_use]
    pub const fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// Why there was no answer. It is part of the text already, and so is not
    /// [`Error::source`], which a reporter would print once more.
    #[must_use]
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.cause
    }

    /// Says which server was asked for what.
    pub(crate) fn asked(mut self, server: &'static str, what: impl Into<String>) -> Self {
        let what = what.into();
        self.asked = Some(Asked { server, what });
        self
    }
}

impl Error for BackendError {}

impl Display for BackendError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        if let Some(Asked { server, what }) = &self.asked {
            write!(formatter, "{server}: {what}: ")?;
        }
        let mut why = self.cause.to_string();
        let mut next = self.cause.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            // Many errors repeat their cause's text in their own.
            if !why.contains(&text) {
                why = format!("{why}: {text}");
            }
            next = cause.source();
        }
        let lines: Vec<_> = why.lines().map(str::trim).collect();
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
    fn the_text_is_one_line_with_every_cause_once() {
        let refused = Outer(io::Error::other("refused"));
        let error = BackendError::transient(refused).asked("redis", "acquire \"a\"");
        let error = LockError::Unavailable(error);
        let text =
            "the lock server is unavailable: redis: acquire \"a\": not connected at all: refused";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
        let repeated = io::Error::other(io::Error::other("refused"));
        assert_eq!(BackendError::transient(repeated).to_string(), "refused");
    }
}
