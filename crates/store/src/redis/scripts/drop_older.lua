-- Deletes a level that is older than its mirror in SQL. Its next use loads it from SQL.
-- KEYS: the level. ARGV: the version of the mirror.
-- Returns the units on hand and the version of a level that was deleted.
-- Release 0.1.0 calls the units `on_hand`.
local level = redis.call('HMGET', KEYS[1], 'units', 'version', 'on_hand')
if not level[2] or tonumber(level[2]) >= tonumber(ARGV[1]) then return {} end
redis.call('DEL', KEYS[1])
return {level[1] or level[3], level[2]}
