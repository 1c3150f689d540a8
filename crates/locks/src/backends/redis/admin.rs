//! Looking into locks, taking them away, and the periods of jobs: a key that expires at the end of the period.
//!
//! A tombstone with a text says that its nonce was revoked. It lives until the lease would have ended, and
//! for two minutes at least. The last token stays, so the next one is greater.

use std::time::Duration;

use async_trait::async_trait;

use super::scripts::Script;
use super::{Redis, RedisBackend, milliseconds, permits};
use crate::backend::{Admin, Claim};
use crate::claims::{Claimant, LockView};
use crate::shared::error::BackendError;
use crate::shared::nonce::{Nonce, REMEMBERED};
use crate::shared::token::Token;

/// `KEYS`: lock. Returns nothing if it is free, otherwise its value, the rest of its lease in ms, and the
/// time in µs.
pub(super) static INSPECT: Script = Script::new(&[r"
local value = redis.call('GET', KEYS[1])
if not value then return {} end
local time = redis.call('TIME')
return {{value, redis.call('PTTL', KEYS[1]), string.format('%.0f', time[1] * 1000000 + time[2])}}
"]);

/// `KEYS`: holders, waiters, claims. Returns the time in µs, and for each holder and waiter its nonce, score
/// and claim.
static INSPECT_PERMITS: Script = Script::new(&[r"
local time = redis.call('TIME')
local found = {}
for i = 1, 2 do
  found[i] = {}
  local members = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
  for at = 1, #members, 2 do
    local claim = redis.call('HGET', KEYS[3], members[at])
    if claim then
      table.insert(found[i], {members[at], string.format('%.0f', members[at + 1]), claim})
    end
  end
end
return {string.format('%.0f', time[1] * 1000000 + time[2]), found[1], found[2]}
"]);

/// `KEYS`: lock, tombstone. `ARGV`: nonce, least lifetime of the tombstone in ms. Returns whether the lock
/// was taken away from the nonce, now or before.
///
/// If its memory is full, Redis refuses `SET` as the first write of a script, so `DEL` comes first.
pub(super) static REVOKE: Script = Script::new(&[r"
local value = redis.call('GET', KEYS[1])
if not value or string.sub(value, 1, 32) ~= ARGV[1] then
  return redis.call('GET', KEYS[2]) == 'revoked' and 1 or 0
end
local keep = math.max(tonumber(ARGV[2]), redis.call('PTTL', KEYS[1]))
redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[2], 'revoked', 'PX', keep)
redis.pcall('PUBLISH', KEYS[1], '')
return 1
"]);

/// `KEYS`: period. `ARGV`: nonce, length in ms. Returns -1 if the nonce has started the period, otherwise
/// the rest of the period in ms.
static BEGIN_PERIOD: Script = Script::new(&[r"
local starter = redis.call('GET', KEYS[1])
if starter and starter ~= ARGV[1] then return math.max(redis.call('PTTL', KEYS[1]), 0) end
if not starter then redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
return -1
"]);

fn parse<T: std::str::FromStr>(text: &str) -> Result<T, BackendError> {
    let cause = || BackendError::permanent(format!("`{text}` is not part of a lock"));
    text.parse().map_err(|_| cause())
}

fn nonce(text: &str) -> Result<Nonce, BackendError> {
    let cause = || BackendError::permanent(format!("`{text}` is no nonce of this crate"));
    Nonce::parse(text).ok_or_else(cause)
}

/// The time between two moments in µs, or zero.
fn between(earlier: u64, later: u64) -> Duration {
    Duration::from_micros(later.saturating_sub(earlier))
}

/// A holder or waiter: nonce, score, claim.
type Found = (String, String, String);

impl Redis {
    async fn inspect_lock(&self, name: &str) -> Result<LockView, BackendError> {
        let keys = [self.lock_key(name)];
        let found = self.servers.script(&INSPECT, &keys, &[]);
        let found: Vec<(String, i64, String)> = found.await?;
        let mut view = LockView::default();
        for (value, rest, now) in found {
            let (holder, token) = value.split_at_checked(32).unwrap_or((&value, ""));
            let token = parse(token)?;
            view.holders.push(Claimant {
                nonce: nonce(holder)?,
                permits: 1,
                token: Some(Token::new(token)),
                owner: None,
                // The token is the time of the acquisition.
                age: Some(between(u64::try_from(token).unwrap_or(0), parse(&now)?)),
                expires_in: Some(Duration::from_millis(u64::try_from(rest).unwrap_or(0))),
            });
        }
        Ok(view)
    }

    async fn inspect_permits(&self, name: &str) -> Result<LockView, BackendError> {
        let keys = self.permit_keys(name);
        let found = self.servers.script(&INSPECT_PERMITS, &keys, &[]);
        let (now, holders, waiters): (String, Vec<Found>, Vec<Found>) = found.await?;
        let now: u64 = parse(&now)?;
        let claimant = |found: &Found, is_holder: bool| {
            let (holder, score, claim) = found;
            let (take, rest) = claim.split_once(':').unwrap_or((claim, ""));
            let (score, rest): (u64, u64) = (parse(score)?, parse(rest)?);
            // Holders have their expiry in ms as the score and their token in the claim; waiters have their
            // arrival in µs as the score and the end of their patience in ms in the claim.
            let (until, since) = if is_holder {
                (score, rest)
            } else {
                (rest, score)
            };
            let token = i64::try_from(rest).map_or(0, |token| token);
            Ok::<_, BackendError>(Claimant {
                nonce: nonce(holder)?,
                permits: parse(take)?,
                token: is_holder.then_some(Token::new(token)),
                owner: None,
                age: Some(between(since, now)),
                expires_in: Some(between(now, until.saturating_mul(1_000))),
            })
        };
        let is_alive = |claimant: &Claimant| claimant.expires_in > Some(Duration::ZERO);
        let list = |found: Vec<Found>, is_holder: bool| {
            let list = found.iter().map(|found| claimant(found, is_holder));
            let list = list.filter(|claimant| claimant.as_ref().map_or(true, is_alive));
            list.collect::<Result<Vec<_>, _>>()
        };
        Ok(LockView {
            holders: list(holders, true)?,
            waiters: list(waiters, false)?,
            ..LockView::default()
        })
    }
}

#[async_trait]
impl Admin for RedisBackend {
    async fn ping(&self) -> Result<(), BackendError> {
        self.0.servers.ping().await
    }

    async fn inspect(&self, name: &str, claim: Claim) -> Result<LockView, BackendError> {
        match claim {
            Claim::Exclusive => self.0.inspect_lock(name).await,
            Claim::Permits { .. } => self.0.inspect_permits(name).await,
        }
    }

    async fn revoke(&self, name: &str, nonce: Nonce, claim: Claim) -> Result<bool, BackendError> {
        let keep = milliseconds(REMEMBERED);
        if claim != Claim::Exclusive {
            let claim = (name, nonce, Duration::ZERO);
            let revoked = self.0.permits(&permits::REVOKE, claim, None, vec![keep]);
            return revoked.await;
        }
        let keys = [self.0.lock_key(name), self.0.tombstone_key(name, nonce)];
        let arguments = [nonce.to_string(), keep];
        self.0.servers.script(&REVOKE, &keys, &arguments).await
    }

    async fn begin_period(
        &self,
        name: &str,
        nonce: Nonce,
        period: Duration,
    ) -> Result<Option<Duration>, BackendError> {
        let keys = [format!("{}:period", self.0.lock_key(name))];
        let arguments = [nonce.to_string(), milliseconds(period)];
        let rest: i64 = self
            .0
            .servers
            .script(&BEGIN_PERIOD, &keys, &arguments)
            .await?;
        Ok(u64::try_from(rest).ok().map(Duration::from_millis))
    }
}
