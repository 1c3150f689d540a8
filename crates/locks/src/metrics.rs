//! What a lock manager tells of itself, for whatever counts it.
//!
//! Without these figures waiting for locks is invisible: requests just become slow. `label` is the
//! low-cardinality name given by [`LockBuilder::label`](crate::LockBuilder::label), never the
//! lock's own name.

use std::fmt::Debug;
use std::time::Duration;

use crate::error::LostReason;

/// Receives the figures. Each method is called on the lock's own path: count, and return.
pub trait LockHooks: Debug + Send + Sync + 'static {
    /// A lock was acquired after `waited`; `contended` if it was not free at once, here or on the
    /// server.
    fn acquired(&self, _label: &'static str, _waited: Duration, _contended: bool) {}

    /// A lock was not acquired.
    fn not_acquired(&self, _label: &'static str, _waited: Duration, _why: NotAcquired) {}

    /// The server was asked for a lock once.
    fn attempted(&self, _label: &'static str, _outcome: AttemptOutcome) {}

    /// A renewal of `locks` locks in one request was answered, or failed, after `took`.
    fn renewed(&self, _locks: usize, _took: Duration, _succeeded: bool) {}

    /// A lock was given up after `held`, and the server did not say that it had been lost. Each lock
    /// that was acquired is counted once in the end, as released or as lost, whether or not
    /// anybody waits for the server's answer.
    fn released(&self, _label: &'static str, _held: Duration) {}

    /// A lock was lost after `held`.
    fn lost(&self, _label: &'static str, _held: Duration, _reason: LostReason) {}

    /// A guard was dropped instead of released; the lock is released in the background, and counted
    /// there.
    fn guard_dropped(&self, _label: &'static str) {}
}

/// Why a lock was not acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotAcquired {
    /// It was not free within the wait limit.
    WaitLimit,
    /// The server could not be asked.
    Unavailable,
    /// Nobody wanted it any more: the future was dropped.
    Abandoned,
    /// The manager was shut down.
    Shutdown,
}

/// What one question to the server came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttemptOutcome {
    /// The lock is held.
    Held,
    /// Another holds it.
    Busy,
    /// There was no answer.
    Failed,
}

/// Counts nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHooks;

impl LockHooks for NoHooks {}
