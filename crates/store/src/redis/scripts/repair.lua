-- Takes units from a level that SQL has sold and Redis has lost, unless the level was repaired or loaded, or
-- Redis was replaced, since the units were counted. No movement: the ledger has the sales.
-- KEYS: the level, its journal, the journal's counters. ARGV: the units, which may be 0; the fields `repairs`,
-- `loaded` and `version` before they were counted; the increase of the version which shows that Redis was
-- replaced.
-- Returns an id of the journal and the level after that: no entry has this id, and later ones are higher.
local level, journal, counters, units = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local now = redis.call('HMGET', level, 'units', 'repairs', 'loaded', 'version')
if not now[1] or (now[2] or '') ~= ARGV[2] or (now[3] or '') ~= ARGV[3] then return {} end
if now[4] - ARGV[4] >= tonumber(ARGV[5]) then return {} end
if units > 0 then
  redis.call('HINCRBY', level, 'units', -units)
  -- No writer may use a level that it read before.
  redis.call('HINCRBY', level, 'version', 1)
  redis.call('HINCRBY', level, 'repairs', 1)
end
local id = redis.call('XADD', journal, '*', 'level', '')
redis.call('XDEL', journal, id)
local repaired = redis.call('HMGET', level, 'units', 'held', 'backorder_limit', 'version')
redis.call('HSET', counters, 'last ' .. level, JOURNAL_VERSION .. ' ' .. table.concat(repaired, ' '))
return {id, unpack(repaired)}
