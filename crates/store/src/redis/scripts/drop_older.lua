-- Deletes a level that is older than its mirror in SQL. Its next use loads it from SQL.
-- KEYS: the level. ARGV: the version of the mirror.
-- Returns the units on hand and the version of a level that was deleted.
local level = redis.call('HMGET', KEYS[1], 'on_hand', 'version')
if not level[2] or tonumber(level[2]) >= tonumber(ARGV[1]) then return {} end
redis.call('DEL', KEYS[1])
return level
