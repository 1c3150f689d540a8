#!lua flags=allow-oom
-- Deletes a level that is older than its mirror in SQL. Its next use loads it from SQL. Any other level gets a
-- version that was never used: Redis may have lost writes of it that SQL does not have, and a client that has
-- read their versions must not confuse them with later ones. `allow-oom`, because the journals of a Redis that
-- is full must still be emptied.
-- KEYS: the level. ARGV: the version of the mirror, the minimum increase of the version.
-- Returns the units on hand and the version of a level that was deleted.
-- Release 0.1.0 calls the units `on_hand`.
local level = redis.call('HMGET', KEYS[1], 'units', 'version', 'on_hand')
if not level[2] then return {} end
if tonumber(level[2]) < tonumber(ARGV[1]) then
  redis.call('DEL', KEYS[1])
  return {level[1] or level[3], level[2]}
end
local time = redis.call('TIME')
local version = math.max(level[2] + ARGV[2], time[1] * 1000000 + time[2])
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version))
return {}
