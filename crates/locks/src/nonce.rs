//! Who holds a lock: a random number for each acquisition, never a thread or a process.

use std::fmt::{self, Display, Formatter};

use uuid::Uuid;

/// 128 bits of the operating system's randomness, made for one acquisition and never used again.
///
/// Servers keep it beside the lock; renewing and releasing compare it. A request that is repeated
/// because its answer was lost carries the same one, and so is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce(Uuid);

impl Nonce {
    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl Display for Nonce {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.0.simple().fmt(formatter)
    }
}
