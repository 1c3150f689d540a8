//! What a manager and a back end send each other: claims, requests and answers.

use std::sync::Arc;
use std::time::Duration;

use crate::shared::error::{BackendError, LostReason, was_answered};
use crate::shared::nonce::Nonce;
use crate::shared::token::Token;

/// What a holder claims. The claims of a name that are exclusive, and those that are permits, do not
/// exclude each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Claim {
    /// The lock belongs to one holder. Which waiting client is next depends on the server.
    Exclusive,
    /// Each holder has some of a number of permits, which are granted in order of arrival.
    Permits {
        /// How many the holder has.
        take: u32,
        /// How many there are. The number in the latest new request applies to all.
        of: u32,
    },
}

impl Claim {
    const SHARES: u32 = 1_000_000;
    /// A read lock: one of a million permits.
    pub const READ: Self = Self::Permits {
        take: 1,
        of: Self::SHARES,
    };
    /// A write lock: all permits of the readers.
    pub const WRITE: Self = Self::Permits {
        take: Self::SHARES,
        of: Self::SHARES,
    };

    pub(crate) fn take(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Permits { take, .. } => take,
        }
    }
}

/// A lock to acquire, to renew, or to release.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lock's name.
    pub name: Arc<str>,
    /// Identifies this acquisition.
    pub nonce: Nonce,
    /// How long the lock lives without renewal, counted from now, if the server lets the client choose.
    pub lease: Duration,
    /// What the holder claims.
    pub claim: Claim,
}

/// The result of one attempt.
#[derive(Debug)]
#[non_exhaustive]
pub enum Attempt {
    /// The lock was acquired.
    Held(Grant),
    /// Another client holds the lock.
    Busy {
        /// When to ask again if no wake-up arrives. `None` if wake-ups cannot be lost.
        ask_again: Option<Duration>,
    },
    /// Since the request was queued, the number of permits has become smaller than its claim. The
    /// request has left the queue.
    TooFewPermits {
        /// How many there are now.
        of: u32,
    },
}

/// What an acquisition may have left on its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The server does not know the nonce, so no release is needed.
    Nothing,
    /// A lock, or a place in a queue.
    Something,
    /// An attempt was not answered, so its request may still arrive. A refusal is an answer.
    Unclear,
}

impl Left {
    /// Makes an attempt whose request is sent now, and notes what it may leave. The future may be dropped.
    pub(crate) async fn by(
        &mut self,
        claim: Claim,
        attempt: impl Future<Output = Result<Attempt, BackendError>>,
    ) -> Result<Attempt, BackendError> {
        let before = std::mem::replace(self, Self::Unclear);
        let answer = attempt.await;
        if was_answered(&answer) {
            // This answer is only about this request. An earlier one may still be on its way.
            *self = before;
        }
        if let Ok(attempt) = &answer
            && *self != Self::Unclear
        {
            *self = match attempt {
                Attempt::Held(_) => Self::Something,
                // A request for permits that was not granted is in their queue.
                Attempt::Busy { .. } if claim != Claim::Exclusive => Self::Something,
                _ => Self::Nothing,
            };
        }
        answer
    }
}

/// A lock as the server granted it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The fencing token. `None` only if [`Fencing::Token`](crate::backend::Fencing::Token) of the back end is `()`.
    pub fence: Option<Fence>,
    /// The server may grant the lock to another client this long after the request was *sent*.
    pub lease: Duration,
}

/// A fencing token, and its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// The token.
    pub token: Token,
    /// What issued the token. Tokens of different sources cannot be compared.
    pub source: Arc<str>,
}

/// The result of one renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Renewed {
    /// The lock is held for this long after the request was sent.
    Held(Duration),
    /// The lock is no longer held.
    Gone(LostReason),
    /// The server did not answer for this lock.
    Unknown,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Release {
    /// This nonce held the lock, and the lock is free now.
    Released,
    /// This nonce did not hold the lock. If it held the lock before, it has lost it for this reason.
    NotHeld(LostReason),
}

/// Who has a lock and who waits for it, as the lock server knew when it answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// The holders. An exclusive lock has at most one.
    pub holders: Vec<Claimant>,
    /// The clients that wait in the server's queue, in order of arrival.
    ///
    /// Exclusive locks have such a queue on ZooKeeper only. On the other servers a waiting client leaves no
    /// trace; only [`local_waiters`](Self::local_waiters) shows those of this process.
    pub waiters: Vec<Claimant>,
    /// How many tasks of this manager wait for the lock. A task that waits in the server's queue counts
    /// here too, and so does one whose release is not confirmed yet.
    pub local_waiters: usize,
}

/// A holder of a lock, or a client that waits for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimant {
    /// Identifies the acquisition.
    pub nonce: Nonce,
    /// How many permits it has, or waits for. 1 for an exclusive lock and for a reader.
    pub permits: u32,
    /// The fencing token of a holder. `None` for a waiter, and if the server issues no tokens.
    pub token: Option<Token>,
    /// What the server knows about the client: the owner of a row in a SQL database, the session on
    /// ZooKeeper. `None` on the other servers.
    pub owner: Option<String>,
    /// For how long a holder has had the lock, or a waiter has waited, by the server's clock. On ZooKeeper
    /// it counts from the arrival in the queue, also for a holder, by the clocks of the server and of this
    /// client. `None` if the server does not know it.
    pub age: Option<Duration>,
    /// How long the claim lasts without a renewal. `None` on ZooKeeper, where the session decides.
    pub expires_in: Option<Duration>,
}
