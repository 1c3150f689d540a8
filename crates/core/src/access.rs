//! API keys: what the owner of a key may do, and in whose name.
//!
//! A key is `slk_<id>_<secret>`. The secret has 256 random bits, so its SHA-256 is as good as a slow hash, and
//! only that is stored. Two hashes may be compared byte by byte: a caller cannot choose a hash that begins
//! like another one.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::names::named;
use crate::stock::Caller;

named! {
    /// What a key allows. Each route needs one of them, or none.
    pub enum Scope {
        /// To read levels, the ledger, audits and metrics.
        Read = "read",
        /// To take stock, and to hold it.
        Sell = "sell",
        /// To set and adjust levels, and to take sold units back.
        Stock = "stock",
        /// To follow the events.
        Events = "events",
        /// To manage webhooks.
        Admin = "admin",
    }
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Read,
        Self::Sell,
        Self::Stock,
        Self::Events,
        Self::Admin,
    ];
}

/// How many lines the owner of a key may send to one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Lines per second.
    pub rate: u32,
    /// Lines at once, after a pause.
    pub burst: u32,
}

/// An API key, as it is stored: without its secret.
#[derive(Debug, Clone)]
pub struct ApiKey {
    /// The part of the key that is no secret.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// Who owns the idempotency keys and references of its requests.
    pub caller: Caller,
    /// The hash of its secret.
    pub secret_hash: SecretHash,
    /// What it allows.
    pub scopes: Vec<Scope>,
    /// Its limit, if it has one.
    pub limit: Option<RateLimit>,
    /// When it was created, in milliseconds since 1970, like the other times.
    pub created_at: i64,
    /// From when on it is refused.
    pub expires_at: Option<i64>,
    /// When it was revoked.
    pub revoked_at: Option<i64>,
}

impl ApiKey {
    /// Whether it is neither revoked nor expired at `now`.
    #[must_use]
    pub fn is_valid(&self, now: i64) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// The hash of a secret. `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl SecretHash {
    /// The hash of a secret.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Its bytes, to store them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for SecretHash {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        let bytes = bytes.try_into();
        bytes.map(Self).map_err(|_| "a hash has 32 bytes")
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretHash(…)")
    }
}

/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 16;

/// The id and the secret of a key, which its owner sends as `slk_<id>_<secret>`.
#[derive(Clone, Copy)]
pub struct Token<'a> {
    /// The id.
    pub id: &'a str,
    /// The secret.
    pub secret: &'a str,
}

impl<'a> Token<'a> {
    /// The parts of a key. `None` if `text` is not a key. Does not check for hexadecimal digits: a
    /// key with other characters is never found.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let (id, secret) = text.strip_prefix("slk_")?.split_at_checked(ID_DIGITS)?;
        let secret = secret.strip_prefix('_')?;
        Some(Self { id, secret })
    }

    /// A new key, and its id, from random numbers.
    #[must_use]
    pub fn mint(id: u64, secret: [u64; 4]) -> (String, String) {
        let id = format!("{id:016x}");
        let [a, b, c, d] = secret;
        let text = format!("slk_{id}_{a:016x}{b:016x}{c:016x}{d:016x}");
        (text, id)
    }
}

impl fmt::Debug for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}, …)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minted_key_is_parsed_and_debug_hides_its_secret() {
        let (text, id) = Token::mint(7, [1, 2, 3, u64::MAX]);
        let token = Token::parse(&text).expect("a key");
        assert_eq!(token.id, id);
        assert!(token.secret.ends_with("3ffffffffffffffff"), "{text}");
        let shown = format!("{token:?} {:?}", SecretHash::of(token.secret));
        assert_eq!(shown, "Token(0000000000000007, …) SecretHash(…)");
    }

    #[test]
    fn other_texts_are_no_keys() {
        let (text, _) = Token::mint(7, [1; 4]);
        for other in [
            "",
            "slk_",
            &text[1..],
            &text[.."slk_".len() + ID_DIGITS],
            &text.replacen("_00", "_000", 1),
            &text.replacen("7_", "é_", 1),
            &text.to_uppercase(),
        ] {
            assert!(Token::parse(other).is_none(), "{other}");
        }
    }
}
