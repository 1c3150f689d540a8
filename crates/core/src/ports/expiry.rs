//! When the attempts of a write end, and what became of them.
//!
//! A lost message may reach the server late. So each attempt carries the time after which the server
//! refuses it, and no refusal of the operation is definite before.

use tokio::time::Instant;

use crate::stock::Movement;

/// When an attempt expires: the server makes it no later.
#[derive(Debug, Clone, Copy)]
pub struct Expiry {
    /// On the server's clock, in milliseconds since 1970. Only this decides.
    pub at: i64,
    /// The same moment on this process's clock, by the last comparison of the two.
    pub here: Instant,
}

impl Expiry {
    /// Of an attempt that is over as soon as another transaction can lock the level.
    #[must_use]
    pub fn passed() -> Self {
        Self {
            at: i64::MIN,
            here: Instant::now(),
        }
    }

    /// The later one.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        if self.at < other.at { other } else { self }
    }
}

impl From<Option<Movement>> for LateAttempt {
    /// Of attempts that are over: what the ledger has of them.
    fn from(recorded: Option<Movement>) -> Self {
        recorded.map_or(Self::Dead, |movement| Self::Recorded(Box::new(movement)))
    }
}

/// What became of the attempts of an operation whose outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateAttempt {
    /// The ledger has the operation, or another one with its key.
    Recorded(Box<Movement>),
    /// None was made, and none will be.
    Dead,
    /// One may still be made: it has not expired yet.
    Alive,
}
