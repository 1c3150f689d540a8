//! The scripts for permits: locks that several holders share, in order of arrival.
//!
//! A lock has four keys below its name: a sorted set of the holders by the end of their lease, a sorted
//! set of the waiters by their arrival in µs, a hash with what each of them takes, and the tombstones. All
//! times come from the server's clock. A waiter repeats its request before its patience ends, otherwise
//! it counts as dead. So does a waiter that cannot reach the server for that long, and each of them if the
//! server stalls: they then start again at the end of the queue. Only the first waiter is checked: those
//! behind it cost no time. A waiter that wants more permits than there are now keeps no other waiter from
//! its turn.
//!
//! The first waiter is woken when there are enough permits for it, over a channel with its nonce.

use std::time::Duration;

use redis::FromRedisValue;

use super::scripts::Script;
use super::{Redis, TOKEN_MEMORY, flag, milliseconds};
use crate::backend::Request;
use crate::shared::error::BackendError;
use crate::shared::nonce::{Nonce, REMEMBERED};

/// `KEYS`: holders, waiters, claims. The last three arguments are: the start of the channels, how long
/// the keys stay in ms, and the nonce.
const COMMON: &str = r"
local holders, waiters, claims = KEYS[1], KEYS[2], KEYS[3]
local channel, keep, nonce = ARGV[#ARGV - 2], tonumber(ARGV[#ARGV - 1]), ARGV[#ARGV]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- What a client takes, and its token or the end of its patience.
local function claim(client)
  local value = redis.call('HGET', claims, client)
  if not value then return 0, nil end
  local take, rest = string.match(value, '^(%d+):(%d+)$')
  return tonumber(take), rest
end

local used = 0
if redis.call('ZCARD', holders) > 0 then
  used = tonumber(redis.call('HGET', claims, 'used') or 0)
end
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', holders, '-inf', now)) do
  used = used - claim(expired)
  redis.call('ZREM', holders, expired)
  redis.call('HDEL', claims, expired)
end

-- The first waiter whose claim can be granted. Those that want more permits than there are now stay in
-- the queue until their next request, which is refused.
local function first()
  local limit, skipped = tonumber(redis.call('HGET', claims, 'of') or 0), 0
  while true do
    local head = redis.call('ZRANGE', waiters, skipped, skipped)[1]
    if not head then return nil end
    local take, patience = claim(head)
    if not patience or tonumber(patience) <= now then
      redis.call('ZREM', waiters, head)
      redis.call('HDEL', claims, head)
    elseif take > limit then
      skipped = skipped + 1
    else
      return head, take, tonumber(patience)
    end
  end
end

-- Stores the state, and wakes the first waiter if there are enough permits for it.
local function finish()
  redis.call('HSET', claims, 'used', used)
  local head, take = first()
  local limit = tonumber(redis.call('HGET', claims, 'of') or 0)
  local refused = ''
  if head and head ~= nonce and used + take <= limit then
    local woken = redis.pcall('PUBLISH', channel .. head, '')
    if type(woken) == 'table' and woken.err then refused = woken.err end
  end
  for _, key in ipairs({holders, waiters, claims}) do
    if redis.call('PTTL', key) < keep then redis.call('PEXPIRE', key, keep) end
  end
  return refused
end
";

/// Before [`COMMON`], which removes expired holders from the state that only `finish` stores.
const IGNORE_IF_RELEASED: &str = "if redis.call('EXISTS', KEYS[4]) == 1 then return {-1} end";

/// `KEYS`: holders, waiters, claims, tombstone, source. `ARGV`: lease in ms, permits to take, their
/// limit, patience in ms, id for a server that has no source, 1 if that id replaces another one, and
/// those of [`COMMON`]. On a cluster the source has another slot, and the id is empty.
///
/// `MGET` reads a source of a foreign type as a missing one: an error here would leave the permits taken.
///
/// The answer is that of a racing lock. `{0, remaining ms}` means that the nonce is in the queue, and
/// `{-2, limit}` that it has left the queue, because there are fewer permits than it wants now.
pub(super) static ACQUIRE: Script = Script::new(&[
    IGNORE_IF_RELEASED,
    COMMON,
    r"
local lease, take, limit, patience = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local token
local expiry = redis.call('ZSCORE', holders, nonce)
if expiry or redis.call('ZSCORE', waiters, nonce) then
  -- A repeated request does not bring an old limit back.
  limit = tonumber(redis.call('HGET', claims, 'of') or limit)
  if not expiry and take > limit then
    redis.call('ZREM', waiters, nonce)
    redis.call('HDEL', claims, nonce)
    finish()
    return {-2, limit}
  end
else
  redis.call('HSET', claims, 'of', limit)
end
if expiry then
  local _, known = claim(nonce)
  token = known
  if tonumber(expiry) < now + lease then redis.call('ZADD', holders, now + lease, nonce) end
else
  local head, _, alive = first()
  if (head and head ~= nonce) or used + take > limit then
    if not redis.call('ZSCORE', waiters, nonce) then
      -- In order of arrival, and by its time, which operators see.
      local last = tonumber(redis.call('HGET', claims, 'last') or 0)
      local arrival = math.max(time[1] * 1000000 + time[2], last + 1)
      arrival = string.format('%.0f', arrival)
      redis.call('HSET', claims, 'last', arrival)
      redis.call('ZADD', waiters, arrival, nonce)
    end
    redis.call('HSET', claims, nonce, string.format('%d:%.0f', take, now + patience))
    local left = patience
    if head and head ~= nonce then left = math.min(left, alive - now) end
    local held = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')
    if held[2] then left = math.min(left, held[2] - now) end
    finish()
    return {0, left}
  end
  token = time[1] * 1000000 + time[2]
  local last = tonumber(redis.call('HGET', claims, 'token') or 0)
  if token <= last then token = last + 1 end
  token = string.format('%.0f', token)
  redis.call('ZREM', waiters, nonce)
  redis.call('ZADD', holders, now + lease, nonce)
  redis.call('HSET', claims, nonce, take .. ':' .. token, 'token', token)
  used = used + take
end
finish()
if ARGV[5] == '' then return {1, token} end
local id = redis.call('MGET', KEYS[5])[1]
if not id or (ARGV[6] == '1' and id ~= ARGV[5]) then
  id = ARGV[5]
  redis.call('SET', KEYS[5], id)
end
if id == ARGV[5] then return {1, token} end
return {1, token, id}
",
]);

/// `KEYS`: holders, waiters, claims, tombstone. `ARGV`: lifetime of the tombstone in ms, 1 if an acquire
/// request was not answered, and those of [`COMMON`]. Returns what [`loss`](super::loss) reads, and why the next waiter
/// could not be woken.
pub(super) static RELEASE: Script = Script::new(&[
    COMMON,
    r"
local held = redis.call('ZREM', holders, nonce) == 1
if held then used = used - claim(nonce) end
local waited = redis.call('ZREM', waiters, nonce) == 1
redis.call('HDEL', claims, nonce)
if ARGV[2] == '1' or not (held or waited) then redis.call('SET', KEYS[4], '', 'PX', ARGV[1], 'NX') end
local gone = redis.call('GET', KEYS[4]) == 'revoked' and 2 or 0
return {held and 1 or gone, finish()}
",
]);

/// `KEYS`: holders, waiters, claims, tombstone. `ARGV`: least lifetime of the tombstone in ms, and those of
/// [`COMMON`]. Returns whether permits were taken away from the nonce, now or before.
pub(super) static REVOKE: Script = Script::new(&[
    COMMON,
    r"
local expiry = redis.call('ZSCORE', holders, nonce)
if expiry then
  used = used - claim(nonce)
  redis.call('ZREM', holders, nonce)
  redis.call('HDEL', claims, nonce)
  redis.call('SET', KEYS[4], 'revoked', 'PX', math.max(tonumber(ARGV[1]), expiry - now))
end
finish()
return redis.call('GET', KEYS[4]) == 'revoked' and 1 or 0
",
]);

/// `KEYS`: holders and claims of each lock. `ARGV`: how long the keys stay in ms, then nonce, lease in ms and
/// tombstone of each lock. Returns for each lock what [`loss`](super::loss) reads. A renewal never shortens a lease.
///
/// The tombstones are not in `KEYS`, as in the script that renews locks. A key of a foreign type has no
/// permits, and does not make the others fail.
pub(super) static RENEW: Script = Script::while_moving(&[r"
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local renewed = {}
for i = 1, #KEYS / 2 do
  local holders, claims = KEYS[2 * i - 1], KEYS[2 * i]
  local nonce, lease, gone = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local expiry = redis.pcall('ZSCORE', holders, nonce)
  if type(expiry) == 'table' then
    if not string.find(expiry.err, 'WRONGTYPE') then return expiry end
    expiry = nil
  end
  expiry = tonumber(expiry or 0)
  if expiry > now then
    local keep = math.max(tonumber(ARGV[1]), lease)
    -- First and always: if its memory is full, Redis refuses ZADD as the first write of a script.
    for _, key in ipairs({holders, claims}) do
      redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), keep))
    end
    if expiry < now + lease then redis.call('ZADD', holders, now + lease, nonce) end
    renewed[i] = 1
  else
    renewed[i] = redis.pcall('GET', gone) == 'revoked' and 2 or 0
  end
end
return renewed
"]);

/// `KEYS`: holders, waiters, claims, tombstone. `ARGV`: permits to keep, and those of [`COMMON`]. Returns
/// what [`loss`](super::loss) reads.
pub(super) static REDUCE: Script = Script::new(&[
    COMMON,
    r"
local held = redis.call('ZSCORE', holders, nonce)
if held then
  local keeps, take, token = tonumber(ARGV[1]), claim(nonce)
  if take > keeps then
    used = used - take + keeps
    redis.call('HSET', claims, nonce, keeps .. ':' .. token)
  end
end
finish()
local gone = redis.call('GET', KEYS[4]) == 'revoked' and 2 or 0
return held and 1 or gone
",
]);

/// `KEYS`: holders. `ARGV`: nonce. Returns whether its lease has not ended. A holder whose lease has ended
/// stays in the set until the next request of any client.
pub(super) static VERIFY: Script = Script::new(&[r"
local time = redis.call('TIME')
local expiry = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0)
return expiry > time[1] * 1000 + math.floor(time[2] / 1000) and 1 or 0
"]);

impl Redis {
    /// The channel over which a waiter is woken.
    pub(super) fn permit_channel(&self, name: &str, nonce: Nonce) -> String {
        format!("{}:{nonce}", self.lock_key(name))
    }

    pub(super) fn permit_keys(&self, name: &str) -> [String; 3] {
        let lock = self.lock_key(name);
        ["holders", "waiters", "claims"].map(|key| format!("{lock}:{key}"))
    }

    /// Runs a script with the keys and the last arguments that all of them have, and with more keys.
    pub(super) async fn permits<T: FromRedisValue>(
        &self,
        script: &Script,
        (name, nonce, lease): (&str, Nonce, Duration),
        more: Option<String>,
        mut arguments: Vec<String>,
    ) -> Result<T, BackendError> {
        let mut keys = self.permit_keys(name).to_vec();
        keys.push(self.tombstone_key(name, nonce));
        keys.extend(more);
        arguments.extend([
            format!("{}:", self.lock_key(name)),
            milliseconds(TOKEN_MEMORY.max(lease * 2)),
            nonce.to_string(),
        ]);
        self.servers.script(script, &keys, &arguments).await
    }

    pub(super) async fn acquire_permits(
        &self,
        request: &Request,
        take: u32,
        of: u32,
        source: &str,
    ) -> Result<Vec<redis::Value>, BackendError> {
        let settings = &self.settings;
        let arguments = vec![
            milliseconds(request.lease),
            take.to_string(),
            of.to_string(),
            // A waiter asks again after this time, or sooner. It may miss two requests.
            milliseconds(settings.fallback.max(settings.polling.unwrap_or_default()) * 3),
            source.to_owned(),
            flag(self.source.is_fixed),
        ];
        let claim = (&*request.name, request.nonce, request.lease);
        let acquired = self.permits(&ACQUIRE, claim, self.source_key(), arguments);
        acquired.await
    }

    /// Returns what [`loss`](super::loss) reads, and why the next waiter could not be woken.
    pub(super) async fn release_permits(
        &self,
        Request { name, nonce, .. }: &Request,
        unclear: bool,
    ) -> Result<(i64, String), BackendError> {
        let arguments = vec![milliseconds(REMEMBERED), flag(unclear)];
        let claim = (&**name, *nonce, Duration::ZERO);
        self.permits(&RELEASE, claim, None, arguments).await
    }

    /// Returns for each claim what [`loss`](super::loss) reads.
    pub(super) async fn renew_permits(
        &self,
        renewals: Vec<&Request>,
    ) -> Result<Vec<i64>, BackendError> {
        if renewals.is_empty() {
            return Ok(Vec::new());
        }
        let mut keys = Vec::new();
        let mut arguments = vec![milliseconds(TOKEN_MEMORY)];
        for Request {
            name, nonce, lease, ..
        } in renewals
        {
            let [holders, _, claims] = self.permit_keys(name);
            keys.extend([holders, claims]);
            let gone = self.tombstone_key(name, *nonce);
            arguments.extend([nonce.to_string(), milliseconds(*lease), gone]);
        }
        self.servers.script(&RENEW, &keys, &arguments).await
    }
}
