-- Takes units from a level that SQL has sold and Redis has lost, unless the level was repaired or loaded
-- since the units were counted. No movement: the ledger has the sales.
-- KEYS: the level. ARGV: the units, and the fields `repairs` and `loaded` before they were counted.
-- Returns the units on hand after that.
local now = redis.call('HMGET', KEYS[1], 'on_hand', 'repairs', 'loaded')
if not now[1] or (now[2] or '') ~= ARGV[2] or (now[3] or '') ~= ARGV[3] then return {} end
local on_hand = redis.call('HINCRBY', KEYS[1], 'on_hand', -tonumber(ARGV[1]))
-- No writer may use a level that it read before.
redis.call('HINCRBY', KEYS[1], 'version', 1)
redis.call('HINCRBY', KEYS[1], 'repairs', 1)
return {string.format('%.0f', on_hand)}
