//! Small coordination: numbers, latches and barriers that several processes share.
//!
//! A [`Number`] is changed exactly once per call, even if an answer is lost. A [`Latch`] opens when enough
//! participants have arrived. A [`Barrier`] lets participants in together, and out together. Redis,
//! ZooKeeper and the back ends without a server have them; on others, each call returns
//! [`LockError::Unsupported`](crate::LockError::Unsupported).
//!
//! Participants that wait are woken by the change itself: over pub/sub on Redis, with a watch on
//! ZooKeeper. Every wait has a limit.

use crate::api::manager::LockManager;

mod barrier;
mod latch;
mod number;

pub use barrier::{Barrier, Party};
pub use latch::Latch;
pub use number::Number;

impl LockManager {
    /// Returns the shared number with this name: 1 to 1,024 bytes of any text. Nothing is sent yet.
    #[must_use]
    pub fn number(&self, name: &str) -> Number {
        Number::new(self, "number", name, None)
    }

    /// Returns the latch with this name, which opens after `count` arrivals. Nothing is sent yet.
    #[must_use]
    pub fn latch(&self, name: &str, count: u32) -> Latch {
        Latch::new(self, name, count)
    }

    /// Returns the barrier with this name for `parties` participants. Nothing is sent yet.
    #[must_use]
    pub fn barrier(&self, name: &str, parties: u32) -> Barrier {
        Barrier::new(self, name, parties)
    }
}
