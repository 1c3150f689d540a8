//! What a lock server has to be able to do, and no more: six questions.
//!
//! The manager does the rest (waiting, renewing, deadlines, releasing, counting), the same for all.
//! Every method may be dropped at any await point; what it may have left on the server goes with a
//! later [`Backend::release`] of the same nonce.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::error::{BackendError, LostReason};
use crate::nonce::Nonce;
use crate::token::Token;

/// A lock server.
#[async_trait]
pub trait Backend: Debug + Send + Sync + 'static {
    /// Its kind, for metrics and logs: `redis`, `zookeeper`.
    fn name(&self) -> &'static str;

    /// How long one question may take; the back end gives up by itself after about that.
    fn response_limit(&self) -> Duration;

    /// How long the server keeps a lock that was asked for with this lease when nobody renews it.
    fn kept_for(&self, lease: Duration) -> Duration;

    /// One acquisition of one lock. Nothing is sent before its first attempt.
    fn contender(&self, request: Request) -> Box<dyn Contender>;

    /// Renews many locks in one go, and answers for each, in order.
    ///
    /// # Errors
    /// When it is not known whether they were renewed.
    async fn renew(&self, renewals: &[Renewal]) -> Result<Vec<Renewed>, BackendError>;

    /// Gives a lock up, or whatever an acquisition with this nonce has left.
    ///
    /// # Errors
    /// When it is not known whether it was given up.
    async fn release(&self, name: &str, nonce: Nonce) -> Result<Release, BackendError>;

    /// Asks the server whether the lock is this nonce's.
    ///
    /// # Errors
    /// When there is no answer.
    async fn verify(&self, name: &str, nonce: Nonce) -> Result<bool, BackendError>;

    /// Asks the server for a sign of life. It changes nothing there.
    ///
    /// # Errors
    /// When there is no answer, or a refusal.
    async fn ping(&self) -> Result<(), BackendError>;

    /// Takes the means to have all locks renewed at once, for a back end that hears of trouble
    /// before a renewal would.
    fn attach(&self, nudge: Nudge);

    /// Ends connections and sessions; nothing is asked afterwards.
    async fn close(&self);
}

/// One acquisition while it lasts. Dropping it ends its interest in wake-ups.
#[async_trait]
pub trait Contender: Send {
    /// Tries once. Repeated after an unclear failure it finds what the first try did: the same
    /// nonce never holds twice, and has one token.
    ///
    /// # Errors
    /// When it is not known whether the lock was acquired.
    async fn attempt(&mut self) -> Result<Attempt, BackendError>;

    /// Completes when another attempt makes sense. The first call may complete at once: a change
    /// between the attempt and the beginning of the subscription would otherwise be missed.
    ///
    /// # Errors
    /// When waiting makes no sense any more, for instance because the session has ended.
    async fn wait(&mut self) -> Result<(), BackendError>;

    /// Whether the server may know the nonce, so that a release is needed if this ends here.
    fn may_have_left_something(&self) -> bool;
}

/// What is to be acquired.
#[derive(Debug, Clone)]
pub struct Request {
    /// The lock's name.
    pub name: Arc<str>,
    /// Who asks.
    pub nonce: Nonce,
    /// How long the lock lives without renewal, where the server lets the client choose.
    pub lease: Duration,
}

/// What one attempt came to.
#[derive(Debug)]
pub enum Attempt {
    /// The lock is held.
    Held(Grant),
    /// Somebody else holds it.
    Busy {
        /// After how long to ask again though no wake-up came; `None` where wake-ups are certain.
        ask_again: Option<Duration>,
    },
}

/// A lock as the server granted it.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The fencing token.
    pub token: Token,
    /// Who minted the token; tokens of different sources do not compare.
    pub source: Arc<str>,
    /// How long after the *sending* of the request the server may grant it to another.
    pub lease: Duration,
}

/// A lock to renew.
#[derive(Debug, Clone)]
pub struct Renewal {
    /// The lock's name.
    pub name: Arc<str>,
    /// Who holds it.
    pub nonce: Nonce,
    /// The lease that it is to have from now on.
    pub lease: Duration,
}

/// What one renewal came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewed {
    /// It is held for this long after the sending of the request.
    Held(Duration),
    /// It is held no more.
    Gone(LostReason),
    /// No answer for this one.
    Unknown,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// The lock was this nonce's, and is free now.
    Released,
    /// It was not this nonce's.
    NotHeld,
}

/// Makes a manager renew all of its locks now; cheap, and never blocks.
#[derive(Debug, Clone)]
pub struct Nudge(pub(crate) Arc<Notify>);

impl Nudge {
    /// Renew now.
    pub fn renew_now(&self) {
        self.0.notify_one();
    }
}
