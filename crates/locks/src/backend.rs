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
//! # Errors
//!
//! A method fails if the server does not answer or refuses the request. It is then unknown whether the request
//! was executed, unless the error says that it was refused. A change of a number also fails if it is impossible,
//! and a wait if it is pointless, for example because the session has ended.
//!
//! # Stability
//!
//! Only this crate implements these traits until release 1.0, because they may still change:
//!
//! ```compile_fail,E0277
//! use async_trait::async_trait;
//! use stocklock_locks::BackendError;
//! use stocklock_locks::backend::{Attempt, Contender, Left};
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
//!     fn left(&self) -> Left {
//!         Left::Nothing
//!     }
//! }
//! ```

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;

use crate::claims::LockView;
pub use crate::claims::{Attempt, Claim, Fence, Grant, Left, Release, Renewed, Request};
use crate::shared::error::{BackendError, LostReason};
pub use crate::shared::managers::Nudge;
use crate::shared::nonce::Nonce;
pub use crate::shared::numbers::{Change, Changed, NumberKey, NumberRequest};
use crate::shared::token::Token;

/// A client of a lock server.
#[async_trait]
pub trait Backend: Admin + Debug + 'static {
    /// What the manager must know about the server. The answer may change between calls.
    fn properties(&self) -> Properties;

    /// Permits, which read-write locks are too, and shared numbers. Only some servers have them. All grant
    /// [`Claim::Exclusive`].
    fn numbers(&self) -> Option<&dyn Numbers>;

    /// Creates one acquisition of one lock. Nothing is sent before its first attempt.
    fn contender(&self, request: Request) -> Box<dyn Contender>;

    /// Renews several locks in one request, and returns one result per lock, in order.
    async fn renew(&self, renewals: &[Request]) -> Result<Vec<Renewed>, BackendError>;

    /// Releases a lock, or removes what an acquisition with this nonce has left on the server.
    ///
    /// `unclear`: an attempt to acquire the lock was not answered. Its request may arrive after the release, and
    /// must not acquire the lock then.
    async fn release(&self, request: &Request, unclear: bool) -> Result<Release, BackendError>;

    /// Asks the server whether this nonce holds the lock. If not, returns why it has lost it.
    async fn verify(&self, name: &str, nonce: Nonce) -> Result<Option<LostReason>, BackendError>;

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
    /// How many tasks of a manager ask the server for a lock while another of its tasks holds it. The
    /// remaining tasks wait in the manager's local queue.
    ///
    /// With 1, the next holder is already known to the server when the lock becomes free, which saves
    /// a round trip. That costs requests for a holder that may leave before its turn.
    pub lookahead: usize,
}

/// One acquisition in progress. Dropping it unsubscribes from wake-ups.
#[async_trait]
pub trait Contender: Sealed + Send {
    /// Tries once to acquire the lock.
    ///
    /// A repeated attempt after an unclear failure finds the result of the first one. A nonce never
    /// holds a lock twice, and has one token.
    async fn attempt(&mut self) -> Result<Attempt, BackendError>;

    /// Completes when another attempt makes sense.
    ///
    /// The first call may complete at once, after it has subscribed. The next attempt then sees a
    /// change that happened before the subscription.
    async fn wait(&mut self) -> Result<(), BackendError>;

    /// Returns what a release must remove.
    fn left(&self) -> Left;
}

/// What operators and jobs ask. The claim only selects the kind of lock: exclusive, or
/// permits of any number.
#[async_trait]
pub trait Admin: Sealed + Send + Sync {
    /// Checks that the server answers, without changing anything on it.
    async fn ping(&self) -> Result<(), BackendError>;

    /// Returns the holders and waiters of a name. [`LockView::local_waiters`] is zero.
    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError>;

    /// Takes the lock away from this holder, wakes the next waiter, and remembers the nonce for two minutes, and
    /// until the end of its lease: by then, the holder has tried to renew it. Returns false if the nonce held no
    /// lock. A repeated request returns the same.
    ///
    /// What the server remembers of the last token stays: the next token is greater.
    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError>;

    /// Starts a period of this length, in which a job runs once, unless another one with this name has not ended
    /// by the server's clock. Returns `None` if this nonce has started the current period, otherwise the rest
    /// of it.
    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError>;
}

/// The numbers of a lock server, and its permits. A number that does not exist is zero.
///
/// Every method may be dropped at any await point. A change may be executed nevertheless.
#[async_trait]
pub trait Numbers: Sealed + Send + Sync {
    /// Changes a number. If the same request is repeated, it is executed once.
    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError>;

    /// Returns the number. With `other_than`, first waits while it is that; the wait may end early.
    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError>;

    /// Reduces a [claim of permits](Claim::Permits) to `keep` of them. If this nonce holds none, returns
    /// why it has lost them.
    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError>;

    /// Returns the tokens of all holders of [permits](Claim::Permits) of this name.
    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError>;
}

/// Only this crate implements the traits of back ends, so a later release can add methods to them.
mod sealed {
    pub trait Sealed {}
}
pub(crate) use sealed::Sealed;
