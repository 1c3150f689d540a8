//! The Lua scripts. Each is atomic on one master, and compares the nonce.
//!
//! A vote is one string with a time to live: the 32 digits of the nonce, then the number of the attempt.
//! The number tells the vote of an attempt from one that a late request of an earlier attempt left.

use super::super::scripts::Script;

/// `KEYS`: vote, tombstone. `ARGV`: nonce, attempt, lease in ms, maximum lease in s.
///
/// Returns 1 for a vote, 0 if another client has the vote, -1 if the nonce was released. If this master may
/// have forgotten a vote, it returns -1 less the number of seconds until it votes.
///
/// The uptime is the difference of two times without their fractions, so it may be a second too long. If it
/// exceeds the maximum lease, that lease has passed since the start.
///
/// A later attempt takes over the vote of an earlier one, but not the other way round.
///
/// `MGET` reads a key of a foreign type as a missing one. `NX` protects such a key, and `GET` then reports it.
pub(super) static ACQUIRE: Script = Script::new(&[r"
local uptime = string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)')
if tonumber(uptime) <= tonumber(ARGV[4]) then return uptime - ARGV[4] - 2 end
local value, gone = unpack(redis.call('MGET', KEYS[1], KEYS[2]))
if gone then return -1 end
local vote = ARGV[1] .. ARGV[2]
if not value then
  if redis.call('SET', KEYS[1], vote, 'PX', ARGV[3], 'NX') then return 1 end
  return redis.call('GET', KEYS[1])
end
if string.sub(value, 1, 32) ~= ARGV[1] then return 0 end
if tonumber(string.sub(value, 33)) > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], vote, 'PX', ARGV[3])
return 1
"]);

/// `KEYS`: votes. `ARGV`: nonce with attempt, and lease in ms, of each vote. Returns for each vote what
/// [`loss`](super::super::scripts::loss) reads.
///
/// It creates no vote, and never shortens a lease. A key of a foreign type is no vote, and does not make the
/// others fail.
pub(super) static RENEW: Script = Script::new(&[r"
local held = {}
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  if values[i] == ARGV[2 * i - 1] then
    if redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
    held[i] = 1
  else
    local gone = redis.pcall('GET', key .. ':gone:' .. string.sub(ARGV[2 * i - 1], 1, 32))
    held[i] = gone == 'revoked' and 2 or 0
  end
end
return held
"]);

/// `KEYS`: vote, tombstone. `ARGV`: nonce, last attempt to release, lifetime of the tombstone in ms, 1 if
/// an acquire request was not answered. Returns what [`loss`](super::super::scripts::loss) reads.
///
/// The vote of a later attempt stays. The tombstone stops requests that are still on their way. If its
/// memory is full, Redis refuses `SET` as the first write of a script, so `DEL` comes first.
pub(super) static RELEASE: Script = Script::new(&[r"
local value = redis.call('MGET', KEYS[1])[1]
local held = value and string.sub(value, 1, 32) == ARGV[1]
held = held and tonumber(string.sub(value, 33)) <= tonumber(ARGV[2])
if held then redis.call('DEL', KEYS[1]) end
if ARGV[4] == '1' then redis.call('SET', KEYS[2], '', 'PX', ARGV[3], 'NX') end
if held then return 1 end
return redis.call('GET', KEYS[2]) == 'revoked' and 2 or 0
"]);
