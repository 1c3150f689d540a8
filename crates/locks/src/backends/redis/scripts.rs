//! The Lua scripts. Each is atomic, and compares the nonce.
//!
//! A lock is one string with a time to live: the 32 digits of the nonce, then the token. All times
//! come from the server's clock.

use std::sync::OnceLock;
use std::time::Duration;

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind};

use crate::shared::error::LostReason;
use crate::shared::nonce::REMEMBERED;

pub(super) struct Script {
    parts: &'static [&'static str],
    /// The text, and the hash by which the server knows it.
    text: OnceLock<(String, String)>,
    /// The script may run at a node of a cluster while its slot moves: it writes nothing before it reads
    /// a key that may be missing there.
    pub(super) while_moving: bool,
}

impl Script {
    pub(super) const fn new(parts: &'static [&'static str]) -> Self {
        Self {
            parts,
            text: OnceLock::new(),
            while_moving: false,
        }
    }

    pub(super) const fn while_moving(parts: &'static [&'static str]) -> Self {
        let mut script = Self::new(parts);
        script.while_moving = true;
        script
    }

    fn text(&self) -> &(String, String) {
        self.text.get_or_init(|| {
            let text = self.parts.concat();
            let hash = redis::Script::new(&text).get_hash().to_owned();
            (text, hash)
        })
    }

    pub(super) fn by_hash(&self, keys: &[String], arguments: &[String]) -> Cmd {
        command("EVALSHA", &self.text().1, keys, arguments)
    }

    pub(super) fn by_text(&self, keys: &[String], arguments: &[String]) -> Cmd {
        command("EVAL", &self.text().0, keys, arguments)
    }

    /// Whether the server does not know the hash.
    pub(super) fn is_unknown(error: &RedisError) -> bool {
        error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
    }
}

pub(super) const REMEMBERED_MS: &str = "120000";
const _: () = assert!(REMEMBERED.as_millis() == 120_000);

fn command(name: &str, script: &str, keys: &[String], arguments: &[String]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    command
}

/// `KEYS`: lock, last token, tombstone, source. `ARGV`: nonce, lease in ms, lifetime of the last
/// token in ms, id for a server that has no source, and any text if that id replaces another one. On a
/// cluster the source has another slot, and the id is empty.
///
/// Returns the token, or `{1, token, id}` if the source's id is not that of the client. Returns `{0,
/// remaining ms}` if the lock is busy, or `{-1}` if this nonce was already released.
///
/// The token is the time in µs, or the last token plus one if the clock went back. It therefore
/// grows even if the last token was forgotten, evicted or lost in a failover. A counter would start
/// again. A double represents the value exactly until the year 2255.
///
/// A repeated request never shortens the lease, because it may arrive late.
///
/// Each call and each argument costs time in the server, so one call reads all keys. It reads a key of
/// a foreign type as a missing one. `NX` protects such a key, and `GET` then reports it.
pub(super) static ACQUIRE: Script = Script::new(&[r"
local call = redis.call
local value, last, gone, id = unpack(call('MGET', unpack(KEYS)))
if gone then return {-1} end
local token
if not value then
  local time = call('TIME')
  token = time[1] .. string.sub(1000000 + time[2], 2)
  if last and tonumber(last) >= tonumber(token) then token = string.format('%.0f', last + 1) end
  if not call('SET', KEYS[1], ARGV[1] .. token, 'PX', ARGV[2], 'NX') then
    return call('GET', KEYS[1])
  end
  call('SET', KEYS[2], token, 'PX', ARGV[3])
elseif string.sub(value, 1, 32) == ARGV[1] then
  token = string.sub(value, 33)
  if call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    call('PEXPIRE', KEYS[1], ARGV[2])
  end
else
  return {0, call('PTTL', KEYS[1])}
end
if id == ARGV[4] or ARGV[4] == '' then return token end
if not id or ARGV[5] then
  id = ARGV[4]
  call('SET', KEYS[4], id)
end
return {1, token, id}
"]);

/// `KEYS`: locks. `ARGV`: nonce and lease in ms of each lock. Returns for each lock what [`loss`] reads.
///
/// A renewal never shortens a lease, because the holder relies on an earlier, longer one. A key of a foreign
/// type is no lock, and does not make the others fail.
///
/// The tombstone is not in `KEYS`. So on a cluster, which gets each lock in its own script, a held lock is
/// renewed however long its slot takes to move. If a lock was revoked, and the tombstone is not at this node or
/// cannot be read, the answer is 0: the holder gets another reason, but also loses the lock.
pub(super) static RENEW: Script = Script::while_moving(&[r"
local held = {}
local values = redis.call('MGET', unpack(KEYS))
for i, key in ipairs(KEYS) do
  local value = values[i]
  if value and string.sub(value, 1, 32) == ARGV[2 * i - 1] then
    if redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then
      redis.call('PEXPIRE', key, ARGV[2 * i])
    end
    held[i] = 1
  else
    held[i] = redis.pcall('GET', key .. ':gone:' .. ARGV[2 * i - 1]) == 'revoked' and 2 or 0
  end
end
return held
"]);

/// `KEYS`: lock, tombstone. `ARGV`: nonce, and any text if an acquire request was not answered. Returns what
/// [`loss`] reads, or the error if the nonce held the lock and no waiter could be woken.
///
/// On a cluster, first without the tombstone, which a lock that is held does not need: then the slot may
/// move meanwhile. Returns -1 if the tombstone is needed.
///
/// If its memory is full, Redis refuses `SET` as the first write of a script, so `DEL` comes first.
///
/// The channel that wakes waiters has the name of the lock. The user may have no right to it. If the
/// nonce does not hold the lock, or an acquire request was not answered, that request may still be
/// on its way over another connection. The tombstone stops it.
///
/// A message costs the server half a microsecond if no client waits. Waiters that mark the lock, so that
/// there is no message without them, would cost each of them a write.
pub(super) static RELEASE: Script = Script::new(&[
    r"
local value = redis.call('MGET', KEYS[1])[1]
local held = value and string.sub(value, 1, 32) == ARGV[1]
if not held and not KEYS[2] then return -1 end
if held then redis.call('DEL', KEYS[1]) end
local gone = KEYS[2]
if not held or ARGV[2] then redis.call('SET', gone, '', 'PX', '",
    REMEMBERED_MS,
    r"', 'NX') end
if not held then return redis.call('GET', gone) == 'revoked' and 2 or 0 end
local woken = redis.pcall('PUBLISH', KEYS[1], '')
if type(woken) == 'table' then return woken.err end
return 1
",
]);

/// Reads a script's answer about a nonce: 1 if it held the lock, 2 if the lock was taken away from it,
/// otherwise 0.
pub(super) fn loss(answer: i64) -> Option<LostReason> {
    match answer {
        1 => None,
        2 => Some(LostReason::Revoked),
        _ => Some(LostReason::Stolen),
    }
}

/// Why a nonce does not hold its lock, by its tombstone.
pub(super) fn reason(tombstone: Option<&str>) -> LostReason {
    match tombstone {
        Some("revoked") => LostReason::Revoked,
        _ => LostReason::Stolen,
    }
}

pub(super) fn flag(is_set: bool) -> String {
    u8::from(is_set).to_string()
}

pub(super) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}
