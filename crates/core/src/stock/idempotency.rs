//! Idempotency: the caller's key, and the hash that distinguishes a retry from another request.

use std::borrow::Cow;

/// The sender of a request. Keys are unique per caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(Cow<'static, str>);

impl Caller {
    /// The name of a caller without an API key.
    pub const ANONYMOUS: &str = "anonymous";

    /// A caller without an API key.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(Cow::Borrowed(Self::ANONYMOUS))
    }

    /// The owner of an API key: 1 to 64 visible ASCII characters.
    ///
    /// # Errors
    /// A sentence that describes a valid name.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let is_valid = (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        let valid = is_valid.then(|| Self(Cow::Owned(text.to_owned())));
        valid.ok_or("a caller has 1 to 64 visible ASCII characters, no spaces")
    }

    /// The caller as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Caller> for Cow<'static, str> {
    fn from(caller: Caller) -> Self {
        caller.0
    }
}

/// The caller's name for one request: 1 to 255 visible ASCII characters, case-sensitive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// The maximum length in characters.
    pub const MAX_CHARS: usize = 255;

    /// The characters, as a regular expression of ECMA-262.
    pub const PATTERN: &str = "^[!-~]+$";

    /// Parses a key.
    ///
    /// # Errors
    /// A sentence that describes a valid key.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !(1..=Self::MAX_CHARS).contains(&text.len())
            || !text.bytes().all(|b| (0x21..=0x7e).contains(&b))
        {
            return Err("Idempotency-Key must have 1 to 255 visible ASCII characters, no spaces");
        }
        Ok(Self(text.to_owned()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// SHA-256 of the canonical lines of a request. The same request has the same hash in any form (body
/// or query, with or without defaults) and under any strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHash(pub [u8; 32]);

/// A request's key, and what decides whether a later request is a retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// The caller.
    pub caller: Caller,
    /// The key.
    pub key: IdempotencyKey,
    /// The hash of the request.
    pub hash: RequestHash,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bounded_visible_ascii() {
        for good in ["a", "A-1_~!", &"k".repeat(255)] {
            assert!(IdempotencyKey::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", " ", "a b", "a\n", "é", &"k".repeat(256)] {
            assert!(IdempotencyKey::parse(bad).is_err(), "{bad:?}");
        }
    }
}
