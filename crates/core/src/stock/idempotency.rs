//! Idempotency: the caller's key, and the hash that tells a repeat from another request.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::{Quantity, Sku, Warehouse};

/// Who sent the request; keys are unique per caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(Cow<'static, str>);

impl Caller {
    /// Whoever sends no API key.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(Cow::Borrowed("anonymous"))
    }

    /// The caller as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The caller's name for one request: 1 to 255 visible ASCII characters; case matters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

impl IdempotencyKey {
    /// Parses a key.
    ///
    /// # Errors
    /// A sentence that says what a key looks like.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !(1..=255).contains(&text.len()) || !text.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
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

/// SHA-256 of the canonical lines of a request: equal for the same request in any form (body or
/// query, defaults spelled out or not), whatever the strategy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHash(pub [u8; 32]);

impl RequestHash {
    /// The hash of a deduction of one line.
    #[must_use]
    pub fn of_deduction(sku: &Sku, warehouse: &Warehouse, quantity: Quantity) -> Self {
        Self::of_lines(&format!("deduct\n{sku}\t{warehouse}\t{quantity}\n"))
    }

    /// The hash of an adjustment.
    #[must_use]
    pub fn of_adjustment(
        sku: &Sku,
        warehouse: &Warehouse,
        delta: i64,
        reason: &str,
        reference: Option<&str>,
    ) -> Self {
        let reference = reference.unwrap_or_default();
        Self::of_lines(&format!(
            "adjust\n{sku}\t{warehouse}\t{delta}\n{reason}\n{reference}\n"
        ))
    }

    fn of_lines(canonical: &str) -> Self {
        Self(Sha256::digest(canonical).into())
    }
}

/// A request's key, with all that decides whether a later one is its repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idempotency {
    /// Whose key it is.
    pub caller: Caller,
    /// The key.
    pub key: IdempotencyKey,
    /// What was asked under it.
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
