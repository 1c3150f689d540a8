//! Numbers: a key for each, and one for each recent answer.
//!
//! Redis adds 64-bit numbers exactly, but a script returns them as doubles. All numbers are therefore
//! passed as text. The script writes each of them in one form, so they can be compared as text.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use super::permits::REDUCE;
use super::scripts::{REMEMBERED_MS, Script, loss};
use super::{Redis, RedisBackend, milliseconds};
use crate::backend::{Change, Changed, NumberKey, NumberRequest, Numbers};
use crate::shared::error::{BackendError, LostReason};
use crate::shared::nonce::Nonce;
use crate::shared::retry::jittered;
use crate::shared::token::Token;

/// The longest lifetime of a number: a hundred years. Redis refuses those that do not fit into 64 bits.
const LONGEST: Duration = Duration::from_hours(100 * 365 * 24);

/// `KEYS`: number, answer. `ARGV`: lifetime of the number in ms or nothing, what to do, its operands.
/// Returns whether the number was changed, and the number; or why it cannot be changed. A server that refuses
/// all writes has its own error, which may pass.
///
/// The channel that wakes waiters has the name of the number. The user may have no right to it; waiters
/// then read again after their fallback.
static CHANGE: Script = Script::new(&[
    r"
local number, answer, keep, change, operand, expected = KEYS[1], KEYS[2], unpack(ARGV)
local known = redis.call('GET', answer)
if known then return known end
local value = redis.call('GET', number) or '0'
local changes = true
if expected then
  changes = value == expected
end
if changes then
  if change == 'add' then
    local sum = redis.pcall('INCRBY', number, operand)
    if type(sum) == 'table' then
      local is_final = string.find(sum.err, 'overflow') or string.find(sum.err, 'not an integer')
      return is_final and 'refused ' .. sum.err or sum
    end
    value = redis.call('GET', number)
  elseif change == 'remove' then
    redis.call('DEL', number)
    value = '0'
  else
    redis.call('SET', number, operand)
    value = operand
  end
end
known = (changes and 'changed ' or 'kept ') .. value
redis.call('SET', answer, known, 'PX', '",
    REMEMBERED_MS,
    r"')
if changes and keep ~= '' then
  redis.call('PEXPIRE', number, keep)
elseif changes then
  redis.call('PERSIST', number)
end
if changes then redis.pcall('PUBLISH', number, '') end
return known
",
]);

/// `KEYS`: holders, claims. Returns the tokens of the holders.
static TOKENS: Script = Script::new(&[r"
local time = redis.call('TIME')
local now = string.format('(%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local tokens = {}
for _, holder in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now, '+inf')) do
  local claim = redis.call('HGET', KEYS[2], holder)
  if claim then tokens[#tokens + 1] = string.match(claim, '%d+$') end
end
return tokens
"]);

fn unexpected(answer: &str) -> BackendError {
    BackendError::permanent(format!("the number is `{answer}`, not a 64-bit number"))
}

impl Redis {
    fn number_key(&self, key: &NumberKey) -> String {
        format!("{}:{}", self.lock_key(&key.name), key.kind)
    }

    async fn number(&self, key: &str) -> Result<i64, BackendError> {
        let mut get = redis::cmd("GET");
        get.arg(key);
        let value: Option<String> = self.servers.run(key, &get).await?;
        let number = |value: String| value.parse().map_err(|_| unexpected(&value));
        value.map_or(Ok(0), number)
    }
}

#[async_trait]
impl Numbers for RedisBackend {
    async fn reduce(
        &self,
        name: &str,
        nonce: Nonce,
        keep: u32,
    ) -> Result<Option<LostReason>, BackendError> {
        let claim = (name, nonce, Duration::ZERO);
        let reduced = self.0.permits(&REDUCE, claim, None, vec![keep.to_string()]);
        reduced.await.map(loss)
    }

    async fn change(&self, request: &NumberRequest) -> Result<Changed, BackendError> {
        let NumberRequest {
            key, nonce, keep, ..
        } = request;
        let done = format!("{}:done:{nonce}", self.0.lock_key(&key.name));
        let keys = [self.0.number_key(key), done];
        let (change, operand, expected) = match request.change {
            Change::Add(by) => ("add", by, None),
            Change::Set(to) => ("set", to, None),
            Change::Exchange { expected, to } => ("exchange", to, Some(expected)),
            Change::Remove { only } => ("remove", 0, only),
        };
        let mut arguments = vec![
            keep.map(|keep| milliseconds(keep.min(LONGEST)))
                .unwrap_or_default(),
            change.to_owned(),
            operand.to_string(),
        ];
        arguments.extend(expected.map(|expected| expected.to_string()));
        let answer = self.0.servers.script(&CHANGE, &keys, &arguments);
        let answer: String = answer.await?;
        let (outcome, value) = answer.split_once(' ').unwrap_or_default();
        if outcome == "refused" {
            return Err(BackendError::permanent(value));
        }
        Ok(Changed {
            value: value.parse().map_err(|_| unexpected(value))?,
            is_changed: outcome == "changed",
        })
    }

    async fn read(&self, key: &NumberKey, other_than: Option<i64>) -> Result<i64, BackendError> {
        let key = self.0.number_key(key);
        let Some(known) = other_than else {
            return self.0.number(&key).await;
        };
        if let Some(interval) = self.0.settings.polling {
            sleep(jittered(interval)).await;
            return self.0.number(&key).await;
        }
        let (mut changes, confirmed) = self.0.wake_ups.subscribe(&key);
        let fallback = jittered(self.0.settings.fallback);
        // Read after the server has confirmed the subscription, so that no change is missed.
        tokio::select! {
            _ = confirmed => {}
            () = changes.message() => {}
            () = sleep(fallback) => {}
        }
        let value = self.0.number(&key).await?;
        if value != known {
            return Ok(value);
        }
        tokio::select! {
            () = changes.message() => {}
            () = sleep(fallback) => {}
        }
        self.0.number(&key).await
    }

    async fn tokens(&self, name: &str) -> Result<Vec<Token>, BackendError> {
        let [holders, _, claims] = self.0.permit_keys(name);
        let keys = [holders, claims];
        let tokens = self.0.servers.script(&TOKENS, &keys, &[]);
        let tokens: Vec<String> = tokens.await?;
        let token = |token: &String| token.parse().map(Token::new).map_err(|_| unexpected(token));
        tokens.iter().map(token).collect()
    }
}
