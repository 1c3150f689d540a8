//! The Lua scripts. Each is atomic, and compares the nonce.
//!
//! A lock is one string with a time to live: the 32 digits of the nonce, then the token. All times
//! come from the server's clock.

use std::sync::LazyLock;

/// The text of a script, and the hash by which the server knows it.
pub(super) struct Script {
    pub(super) code: String,
    pub(super) hash: String,
}

impl Script {
    pub(super) fn new(code: impl Into<String>) -> Self {
        let code = code.into();
        Self {
            hash: redis::Script::new(&code).get_hash().to_owned(),
            code,
        }
    }
}

/// `KEYS`: lock, last token, tombstone, source. `ARGV`: nonce, lease in ms, lifetime of the last
/// token in ms, id for a server that has no source, 1 if that id replaces another one.
///
/// Returns `{1, token}`, with the source's id if it is not that of the client. Returns `{0, remaining
/// ms}` if the lock is busy, or `{-1}` if this nonce was already released.
///
/// The token is the time in µs, or the last token plus one if the clock went back. It therefore
/// grows even if the last token was forgotten, evicted or lost in a failover. A counter would start
/// again. A double represents the value exactly until the year 2255.
///
/// A repeated request never shortens the lease, because it may arrive late.
///
/// Each call costs time in the server, so one reads all keys. It reads a key of a foreign type as a
/// missing one. `NX` protects such a key, and `GET` then reports it.
pub(super) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local value, last, gone, id = unpack(redis.call('MGET', unpack(KEYS)))
if gone then return {-1} end
local token
if not value then
  local time = redis.call('TIME')
  token = time[1] * 1000000 + time[2]
  last = tonumber(last or 0)
  if token <= last then token = last + 1 end
  token = string.format('%.0f', token)
  if not redis.call('SET', KEYS[1], ARGV[1] .. token, 'PX', ARGV[2], 'NX') then
    return redis.call('GET', KEYS[1])
  end
  redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
elseif string.sub(value, 1, 32) == ARGV[1] then
  token = string.sub(value, 33)
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
else
  return {0, redis.call('PTTL', KEYS[1])}
end
if not id or (ARGV[5] == '1' and id ~= ARGV[4]) then
  id = ARGV[4]
  redis.call('SET', KEYS[4], id)
end
if id == ARGV[4] then return {1, token} end
return {1, token, id}
",
    )
});

/// `KEYS`: locks. `ARGV`: nonce and lease in ms of each lock. Returns 1 or 0 for each lock.
///
/// A renewal never shortens a lease, because the holder relies on an earlier, longer one.
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

/// `KEYS`: lock, tombstone. `ARGV`: nonce, lifetime of the tombstone in ms, 1 if an acquire request
/// was not answered. Returns whether the nonce held the lock, and why no waiter could be woken.
///
/// The channel that wakes waiters has the name of the lock. The user may have no right to it. If the
/// nonce does not hold the lock, or an acquire request was not answered, that request may still be
/// on its way over another connection. The tombstone stops it.
pub(super) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local value = redis.call('GET', KEYS[1])
local held = value and string.sub(value, 1, 32) == ARGV[1]
if not held or ARGV[3] == '1' then redis.call('SET', KEYS[2], '', 'PX', ARGV[2]) end
if not held then return {0, ''} end
redis.call('DEL', KEYS[1])
local woken = redis.pcall('PUBLISH', KEYS[1], '')
if type(woken) == 'table' and woken.err then return {1, woken.err} end
return {1, ''}
",
    )
});
