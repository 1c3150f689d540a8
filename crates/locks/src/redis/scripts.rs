//! The scripts. Each is atomic, and each compares the nonce.
//!
//! A lock is one string, the nonce's 32 digits and then the token, with a time to live. The clock is
//! the server's own.

use std::sync::LazyLock;

/// A script's text and the hash that the server knows it by.
pub(super) struct Script {
    pub(super) code: &'static str,
    pub(super) hash: String,
}

impl Script {
    fn new(code: &'static str) -> Self {
        Self {
            code,
            hash: redis::Script::new(code).get_hash().to_owned(),
        }
    }
}

/// `KEYS`: lock, last token, tombstone, source. `ARGV`: nonce, lease in ms, how long to remember the
/// token in ms, a random id for a server that has none.
/// → `{1, token, source}`, or `{0, ms left}`, or `{-1}` if this nonce was given up before.
///
/// The token is the time in µs, or one more than the last one where the clock has gone back. So it
/// grows also when the last one was forgotten, evicted or lost in a failover, which a counter's does
/// not. A double holds it exactly until the year 2255.
pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local function source()
  local id = redis.call('GET', KEYS[4])
  if not id then
    id = ARGV[4]
    redis.call('SET', KEYS[4], id)
  end
  return id
end
if redis.call('EXISTS', KEYS[3]) == 1 then return {-1} end
local value = redis.call('GET', KEYS[1])
if value then
  if string.sub(value, 1, 32) ~= ARGV[1] then return {0, redis.call('PTTL', KEYS[1])} end
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, string.sub(value, 33), source()}
end
local time = redis.call('TIME')
local token = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
if token <= last then token = last + 1 end
token = string.format('%.0f', token)
redis.call('SET', KEYS[1], ARGV[1] .. token, 'PX', ARGV[2])
redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
return {1, token, source()}
",
    )
});

/// `KEYS`: locks. `ARGV`: nonce and lease in ms of each. → 1 or 0 for each.
///
/// A lease is never shortened: an earlier, longer one was promised to the holder.
pub(super) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local held = {}
for i, key in ipairs(KEYS) do
  local value = redis.call('GET', key)
  if value and string.sub(value, 1, 32) == ARGV[2 * i - 1] then
    if redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
    held[i] = 1
  else
    held[i] = 0
  end
end
return held
",
    )
});

/// `KEYS`: lock, tombstone. `ARGV`: nonce, life of the tombstone in ms. → 1 if it was held, else 0.
///
/// The channel that wakes waiters has the lock's own name. Where nothing was held, the request that
/// would acquire it may still be on its way over another connection: the tombstone meets it.
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local value = redis.call('GET', KEYS[1])
if value and string.sub(value, 1, 32) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[1], '')
  return 1
end
redis.call('SET', KEYS[2], '', 'PX', ARGV[2])
return 0
",
    )
});
