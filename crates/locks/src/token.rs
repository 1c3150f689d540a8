//! Fencing tokens: what the guarded resource compares to refuse a holder that was overtaken.

use std::fmt::{self, Display, Formatter};

/// A number that grows from each acquisition of a lock to the next one of the same source.
///
/// Renewing and re-entering do not change it. It is only worth what the resource makes of it: write
/// with the condition that no greater token of the same [source](crate::LockGuard::source) has been
/// seen, and beside a version check, since a stale write may also arrive *before* the next holder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(i64);

impl Token {
    /// A token from its number.
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number, never negative, as a signed 64-bit column takes it.
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
