//! Guarded writes in Redis.

/// A script that runs one command, unless a later holder of the lock has already written.
///
/// `KEYS[1]` is a string that stores the token of the last writer, such as `{account:7}:fence`. The other
/// keys are those of the command, in the same hash slot on Redis Cluster. `ARGV`: the
/// [token](crate::LockGuard::token), the [source](crate::LockGuard::source), the command, its
/// arguments.
///
/// It returns `{1, reply}` if the command was executed, and `{0, token of the later holder}` if not.
/// The holder must then stop. If the command fails, the token is stored nevertheless.
///
/// The key of the token must live as long as the data, and on the same server: give both the same
/// expiry, or none. If it is lost, the next write passes. Tokens of different sources cannot be
/// compared, so a change of the source passes. A late write can also arrive *before* the first write of
/// the next holder, and then passes. If the new value depends on one that was read, the command must
/// compare it too.
///
/// ```
/// # async fn write(connection: &mut redis::aio::MultiplexedConnection, guard: &stocklock_locks::LockGuard)
/// #     -> redis::RedisResult<()> {
/// use stocklock_locks::redis::FENCED_COMMAND;
///
/// let (written, _reply): (bool, redis::Value) = redis::Script::new(FENCED_COMMAND)
///     .key("{account:7}:fence")
///     .key("{account:7}")
///     .arg(guard.token().get())
///     .arg(guard.source())
///     .arg("SET")
///     .arg("{account:7}")
///     .arg(100)
///     .invoke_async(connection)
///     .await?;
/// if !written {
///     // A later holder has written.
/// }
/// # Ok(()) }
/// ```
pub const FENCED_COMMAND: &str = r"
local token, source = ARGV[1], ARGV[2]
local newest, issuer = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) (.*)$')
-- Compared as text, because a double cannot represent all 64-bit numbers.
if issuer == source and (#newest > #token or (#newest == #token and newest > token)) then
  return {0, newest}
end
-- First the token: if Redis refuses to store it, the command must not run.
redis.call('SET', KEYS[1], token .. ' ' .. source, 'KEEPTTL')
return {1, redis.call(unpack(ARGV, 3))}
";
