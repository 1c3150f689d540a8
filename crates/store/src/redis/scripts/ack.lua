-- Acknowledges and deletes entries that are in SQL, and counts them for each level.
-- The count includes entries that Redis lost or that another consumer acknowledged. A count that is
-- too high is harmless: it only makes a concurrent load of the level start again.
-- KEYS: the journal, its counters. ARGV: the group, then each entry's id, level and number of movements.
local ids, acked, removed = {}, {}, 0
for i = 2, #ARGV, 3 do
  local id, level, movements = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  ids[#ids + 1] = id
  acked[level] = (acked[level] or 0) + 1
  removed = removed + redis.call('XDEL', KEYS[1], id) * movements
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
for level, entries in pairs(acked) do redis.call('HINCRBY', KEYS[2], level, entries) end
if removed > 0 then redis.call('HINCRBY', KEYS[2], 'waiting', -removed) end
return {}
