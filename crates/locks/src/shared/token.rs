//! Fencing tokens, with which the guarded resource refuses writes of an outdated holder.

use std::fmt::{self, Display, Formatter};

/// A number that grows with each acquisition of a lock from the same source.
///
/// Renewals and reentry do not change it. It only helps if the resource checks it. Write on the
/// condition that the resource has not seen a greater token of the same
/// [source](crate::LockGuard::source). Also check a version, because an outdated write may arrive
/// *before* the first write of the next holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(i64);

impl Token {
    /// Creates a token from its number.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// Returns the number. It is never negative, and fits into a signed 64-bit column.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl Display for Token {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
