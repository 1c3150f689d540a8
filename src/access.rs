//! Who may call: the API keys that this replica knows.
//!
//! All keys are in memory, so a request costs no query, whether its key is known or not. `app/keys.rs` loads
//! them again every few seconds. If the database is away, the last ones stay valid.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::time::Instant;

use stocklock_core::access::{ApiKey, Scope, SecretHash, Token};
use stocklock_core::stock::Caller;
use stocklock_store::KeyList;

mod bucket;

use bucket::TokenBucket;

/// From this age on, a replica with such keys is not ready: a key that was revoked may still be valid there.
const MAX_AGE: Duration = Duration::from_secs(30);

/// Who may call the routes.
#[derive(Debug)]
pub(crate) enum Access {
    /// Everyone who can reach the service, as the caller `anonymous`.
    Open,
    /// Who has a key.
    Keys(KeyRing),
}

impl Access {
    /// Why the replica is not ready, if it is not.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let Self::Keys(ring) = self else { return None };
        match ring.age() {
            None => Some("the API keys are not loaded yet"),
            Some(age) if age > MAX_AGE => Some("the API keys could not be loaded for 30 s"),
            Some(_) => None,
        }
    }
}

/// The keys that were loaded last.
#[derive(Debug, Default)]
pub(crate) struct KeyRing(RwLock<Option<Loaded>>);

#[derive(Debug)]
struct Loaded {
    /// Before they were read.
    at: Instant,
    /// Those that were valid then.
    keys: HashMap<String, KnownKey>,
}

#[derive(Debug)]
struct KnownKey {
    key: ApiKey,
    /// When it expires.
    ends: Option<Instant>,
    bucket: Option<Arc<TokenBucket>>,
}

/// What a request may do.
#[derive(Debug, Clone)]
pub(crate) struct Grant {
    /// In whose name.
    pub(crate) caller: Caller,
    bucket: Option<Arc<TokenBucket>>,
}

impl Grant {
    pub(crate) fn anonymous() -> Self {
        Self {
            caller: Caller::anonymous(),
            bucket: None,
        }
    }

    /// Counts the lines of a request. The first is counted already.
    pub(crate) fn charge_lines(&self, lines: usize) {
        if let Some(bucket) = &self.bucket {
            bucket.charge(lines.saturating_sub(1), Instant::now());
        }
    }
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No key was loaded yet.
    NotLoaded,
    /// The request has no key.
    NoKey,
    /// The key is unknown, its secret is wrong, or it is expired or revoked. The caller does not learn which.
    InvalidKey,
    /// The key does not have the scope.
    Needs(Scope),
    /// The key's limit is reached, for so many seconds.
    TooMany(u32),
}

impl KeyRing {
    /// Replaces the keys by those that were read from `at` on. Buckets stay, unless their limit has changed.
    pub(crate) fn replace(&self, list: KeyList, at: Instant) {
        let mut loaded = self.0.write();
        let mut before = loaded.take().map(|loaded| loaded.keys).unwrap_or_default();
        let known = |key: ApiKey| {
            let bucket = before.remove(&key.id).and_then(|known| known.bucket);
            let bucket = bucket.filter(|bucket| key.limit == Some(bucket.limit));
            let new = || key.limit.map(|limit| Arc::new(TokenBucket::full(limit)));
            let bucket = bucket.or_else(new);
            let ends = key.expires_at.map(|end| {
                let left = u64::try_from(end - list.now).unwrap_or_default();
                at + Duration::from_millis(left)
            });
            (key.id.clone(), KnownKey { key, ends, bucket })
        };
        let valid = list.keys.into_iter().filter(|key| key.is_valid(list.now));
        let keys = valid.map(known).collect();
        *loaded = Some(Loaded { at, keys });
    }

    /// Whether a key can be used now. `None` if they are not loaded yet.
    pub(crate) fn has_valid(&self) -> Option<bool> {
        let loaded = self.0.read();
        let loaded = loaded.as_ref()?;
        Some(loaded.keys.values().any(KnownKey::is_valid))
    }

    fn age(&self) -> Option<Duration> {
        let loaded = self.0.read();
        loaded.as_ref().map(|loaded| loaded.at.elapsed())
    }

    /// Decides on a request with this key. `needs`: the scope of its route.
    pub(crate) fn admit(&self, key: Option<&str>, needs: Scope) -> Result<Grant, Denied> {
        let grant = self.check(key, needs)?;
        if let Some(bucket) = &grant.bucket {
            bucket.take(Instant::now()).map_err(Denied::TooMany)?;
        }
        Ok(grant)
    }

    /// The same for a request that was admitted and goes on: it takes no token.
    pub(crate) fn check(&self, key: Option<&str>, needs: Scope) -> Result<Grant, Denied> {
        let loaded = self.0.read();
        let loaded = loaded.as_ref().ok_or(Denied::NotLoaded)?;
        let token = Token::parse(key.ok_or(Denied::NoKey)?).ok_or(Denied::InvalidKey)?;
        let known = loaded.keys.get(token.id).ok_or(Denied::InvalidKey)?;
        let is_right = known.key.secret_hash == SecretHash::of(token.secret);
        if !is_right || !known.is_valid() {
            return Err(Denied::InvalidKey);
        }
        if !known.key.scopes.contains(&needs) {
            return Err(Denied::Needs(needs));
        }
        Ok(Grant {
            caller: known.key.caller.clone(),
            bucket: known.bucket.clone(),
        })
    }
}

impl KnownKey {
    fn is_valid(&self) -> bool {
        self.ends.is_none_or(|end| Instant::now() < end)
    }
}

#[cfg(test)]
mod tests {
    use stocklock_core::access::RateLimit;

    use super::*;

    /// The clock of the database.
    const NOW: i64 = 1_000_000;

    fn replace(ring: &KeyRing, keys: &[ApiKey]) {
        let (now, keys) = (NOW, keys.to_vec());
        ring.replace(KeyList { now, keys }, Instant::now());
    }

    /// A key, and how it is stored.
    fn key(number: u64, change: impl FnOnce(&mut ApiKey)) -> (String, ApiKey) {
        let (text, id) = Token::mint(number, [number; 4]);
        let mut key = ApiKey {
            id,
            name: "test".to_owned(),
            caller: Caller::parse("shop").expect("a caller"),
            secret_hash: SecretHash::of(Token::parse(&text).expect("a key").secret),
            scopes: vec![Scope::Sell],
            limit: None,
            created_at: 0,
            expires_at: None,
            revoked_at: None,
        };
        change(&mut key);
        (text, key)
    }

    fn outcome(ring: &KeyRing, key: &str) -> Result<String, Denied> {
        let granted = ring.admit(Some(key), Scope::Sell);
        granted.map(|grant| grant.caller.as_str().to_owned())
    }

    #[tokio::test]
    async fn request_is_granted_by_its_key_alone() {
        let ring = KeyRing::default();
        let (good, stored) = key(1, |_| {});
        assert_eq!(outcome(&ring, &good), Err(Denied::NotLoaded));
        assert_eq!(ring.has_valid(), None);
        let (revoked, stored_revoked) = key(2, |key| key.revoked_at = Some(NOW + 60_000));
        let (expired, stored_expired) = key(3, |key| key.expires_at = Some(NOW));
        let (reader, stored_reader) = key(4, |key| key.scopes = vec![Scope::Read, Scope::Stock]);
        let keys = [stored, stored_revoked, stored_expired, stored_reader];
        replace(&ring, &keys);
        assert_eq!(outcome(&ring, &good), Ok("shop".to_owned()));
        assert_eq!(ring.admit(None, Scope::Sell).err(), Some(Denied::NoKey));
        let (unknown, _) = key(5, |_| {});
        let other_secret = good[..21].to_owned() + &unknown[21..];
        for wrong in [
            &unknown,
            &other_secret,
            &revoked,
            &expired,
            &good[..good.len() - 1],
            &format!("{good}0"),
            "slk_1_2",
        ] {
            assert_eq!(outcome(&ring, wrong), Err(Denied::InvalidKey), "{wrong}");
        }
        assert_eq!(outcome(&ring, &reader), Err(Denied::Needs(Scope::Sell)));
        assert_eq!(ring.has_valid(), Some(true));
        replace(&ring, &keys[1..3]);
        assert_eq!(ring.has_valid(), Some(false));
        assert_eq!(outcome(&ring, &good), Err(Denied::InvalidKey));
    }

    /// The clock of the database decides. Between two loads, the replica counts the time.
    #[tokio::test(start_paused = true)]
    async fn key_expires_between_two_loads() {
        let ring = KeyRing::default();
        let (text, stored) = key(1, |key| key.expires_at = Some(NOW + 2_000));
        replace(&ring, &[stored]);
        for expected in [
            Ok("shop".to_owned()),
            Ok("shop".to_owned()),
            Err(Denied::InvalidKey),
        ] {
            assert_eq!(outcome(&ring, &text), expected);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(ring.has_valid(), Some(false));
    }

    /// Otherwise the keys that are loaded every few seconds would bring a full bucket each time.
    #[tokio::test(start_paused = true)]
    async fn limit_survives_a_reload_and_ends_when_it_is_changed() {
        let ring = KeyRing::default();
        let load = |rate| {
            let (text, key) = key(1, |key| key.limit = Some(RateLimit { rate, burst: 2 }));
            replace(&ring, &[key]);
            text
        };
        let text = load(1);
        assert!(outcome(&ring, &text).is_ok());
        load(1);
        assert!(outcome(&ring, &text).is_ok());
        assert_eq!(outcome(&ring, &text), Err(Denied::TooMany(1)));
        assert!(ring.check(Some(&text), Scope::Sell).is_ok());
        load(5);
        assert!(outcome(&ring, &text).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn replica_with_old_keys_is_not_ready() {
        let access = Access::Keys(KeyRing::default());
        assert!(access.problem().is_some());
        let Access::Keys(ring) = &access else {
            unreachable!()
        };
        replace(ring, &[]);
        for (pause, is_ready) in [(30, true), (1, false)] {
            tokio::time::advance(Duration::from_secs(pause)).await;
            assert_eq!(access.problem().is_none(), is_ready);
        }
        replace(ring, &[]);
        assert_eq!(access.problem(), None);
        assert_eq!(Access::Open.problem(), None);
    }
}
