//! The interface to a lock server.
//!
//! A back end only talks to its server. The manager does everything else for all back ends:
//! waiting, renewing, deadlines, releasing and metrics.
//!
//! # Cancel safety
//!
//! Every method may be dropped at any await point. A later [`Backend::release`] with the same nonce
//! removes what the dropped call may have left on the server.
//!
//! # Stability
//!
//! Only this crate implements these traits until release 1.0, because they may still change:
//!
//! ```compile_fail,E0277
//! use async_trait::async_trait;
//! use stocklock_locks::BackendError;
//! use stocklock_locks::backend::{Attempt, Contender};
//!
//! struct Mine;
//!
//! #[async_trait]
//! impl Contender for Mine {
//!     async fn attempt(&mut self) -> Result<Attempt, BackendError> {
//!         Ok(Attempt::Busy { ask_again: None })
//!     }
//!     async fn wait(&mut self) -> Result<(), BackendError> {
//!         Ok(())
//!     }
//!     fn may_have_left_something(&self) -> bool {
//!         false
//!     }
//!     fn has_unanswered_attempt(&self) -> bool {
//!         false
//!     }
//! }
//! ```

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

pub use crate::api::admin::Admin;
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;
pub use crate::shared::numbers::{Change, Changed, NumberKey, NumberRequest, Numbers};
use crate::shared::sealed::Sealed;
use crate::shared::token::Token;

/// A client of a lock server.
#[async_trait]
pub trait Backend: Sealed + Debug + Send + Sync + 'static {
    /// What the manager must know about the server. The answer may change between calls.
    fn properties(&self) -> Properties;

    /// How many tasks of a manager ask the server for a lock while another of its tasks holds it. The
    /// remaining tasks wait in the manager's local queue.
    ///
    /// With 1, the next holder is already known to the server when the lock becomes free, which saves
    /// a round trip. That costs requests for a holder that may leave before its turn.
    fn lookahead(&self) -> usize {
        0
    }

    /// Returns true if the server can grant this kind of claim. All can grant [`Claim::Exclusive`].
    fn supports(&self, claim: Claim) -> bool {
        claim == Claim::Exclusive
    }

    /// Creates one acquisition of one lock. Nothing is sent before its first attempt.
    fn contender(&self, request: Request) -> Box<dyn Contender>;

    /// Renews several locks in one request, and returns one result per lock, in order.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the locks were renewed.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError>;

    /// Releases a lock, or removes what an acquisition with this nonce has left on the server.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the lock was released.
    async fn release(&self, request: &ReleaseRequest) -> Result<Release, BackendError>;

    /// Reduces a [claim of permits](Claim::Permits) to `keep` of them. If this nonce holds none, returns
    /// why it has lost them.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the claim was reduced, or if the server has no permits.
    async fn reduce(
        &self,
        _name: &str,
        _nonce: Nonce,
        _keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        Err(BackendError::permanent("this back end has no permits"))
    }

    /// Starts a period of this length, unless another one with this name has not ended by the server's
    /// clock. Returns `None` if this nonce has started the current period, otherwise the rest of it.
    ///
    /// # Errors
    /// Returns an error if it is unknown whether the period has started, or if the server has no periods.
    async fn begin_period(
        &self,
        _name: &str,
        _nonce: Nonce,
        _period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        Err(BackendError::permanent("this back end has no periods"))
    }

    /// The shared numbers of the server, if it has them. A server that has them also has permits.
    fn numbers(&self) -> Option<&dyn Numbers> {
        None
    }

    /// What the server tells operators about its locks, if it can.
    fn admin(&self) -> Option<&dyn Admin> {
        None
    }

    /// Asks the server whether this nonce holds the lock. If not, returns why it has lost it.
    ///
    /// # Errors
    /// Returns an error if the server does not answer.
    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError>;

    /// Checks that the server answers, without changing anything on it.
    ///
    /// # Errors
    /// Returns an error if the server does not answer or refuses the request.
    async fn ping(&self) -> Result<(), BackendError>;

    /// Registers a manager. The back end uses its handle if it can detect trouble before the next
    /// renewal.
    fn attach(&self, nudge: Nudge);

    /// Removes the manager with this handle. Closes connections and sessions if no other manager is
    /// registered: clones of a back end share them. A manager that is registered later opens them
    /// again.
    async fn detach(&self, nudge: &Nudge);
}

/// Says in a type whether the locks of a back end have fencing tokens. A program that needs tokens then
/// does not compile with a back end that has none.
pub trait Fencing: Backend {
    /// [`Token`], or `()` if there are no tokens.
    type Token: Debug + Clone + Send + Sync + 'static;
}

/// What a manager knows about a lock server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Properties {
    /// The kind of server, for logs and errors: `redis`, `zookeeper`.
    pub name: &'static str,
    /// How long one request may take. The back end itself gives up after about this time.
    pub response_limit: Duration,
    /// How long the server keeps a lock that is not renewed, if a session decides that and not the
    /// lease of the lock.
    pub session: Option<Duration>,
    /// The longest lease that the server grants. It shortens longer ones. `None` if there is no limit.
    pub max_lease: Option<Duration>,
}

/// One acquisition in progress. Dropping it unsubscribes from wake-ups.
#[async_trait]
pub trait Contender: Sealed + Send {
    /// Tries once to acquire the lock.
    ///
    /// A repeated attempt after an unclear failure finds the result of the first one. A nonce never
    /// holds a lock twice, and has one token.
    ///
    /// # Errors
    /// Returns an error if the server refused the request, or if it is unknown whether the lock was
    /// acquired.
    async fn attempt(&mut self) -> Result<Attempt, BackendError>;

    /// Completes when another attempt makes sense.
    ///
    /// The first call may complete at once, after it has subscribed. The next attempt then sees a
    /// change that happened before the subscription.
    ///
    /// # Errors
    /// Returns an error if waiting is pointless, for example because the session has ended.
    async fn wait(&mut self) -> Result<(), BackendError>;

    /// Returns true if the server may know the nonce, so that a release is needed.
    fn may_have_left_something(&self) -> bool;

    /// Returns true if an attempt was not answered, so that its request may still arrive. A refusal is an
    /// answer.
    fn has_unanswered_attempt(&self) -> bool;
}

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
    /// All permits of a read-write lock.
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

    /// How many permits the holder has.
    pub(crate) fn take(self) -> u32 {
        match self {
            Self::Exclusive => 1,
            Self::Permits { take, .. } => take,
        }
    }
}

/// A lock to acquire.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lock's name.
    pub name: Arc<str>,
    /// Identifies this acquisition.
    pub nonce: Nonce,
    /// How long the lock lives without renewal, if the server lets the client choose.
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

/// A lock as the server granted it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The fencing token. `None` only if [`Fencing::Token`] of the back end is `()`.
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

/// A lock to renew.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The lock's name.
    pub name: Arc<str>,
    /// Identifies the holder.
    pub nonce: Nonce,
    /// The new lease, counted from now.
    pub lease: Duration,
    /// What the holder claims.
    pub claim: Claim,
}

/// A lock to release.
#[derive(Debug, Clone)]
pub struct ReleaseRequest {
    /// The lock's name.
    pub name: Arc<str>,
    /// Identifies the holder.
    pub nonce: Nonce,
    /// An attempt to acquire the lock was not answered. Its request may arrive after the release,
    /// and must not acquire the lock then.
    pub unclear: bool,
    /// What the holder claims.
    pub claim: Claim,
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

/// Makes a manager renew all of its locks now. It is cheap and never blocks.
#[derive(Debug, Clone)]
pub struct Nudge(pub(crate) Arc<Notify>);

impl Nudge {
    /// Starts the renewals.
    pub fn renew_now(&self) {
        self.0.notify_one();
    }
}
