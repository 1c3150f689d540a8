-- Removes entries that are in SQL, and counts them for each level: also those that Redis had lost
-- before, and those that another consumer was faster with, which costs a load one more look.
-- KEYS: the journal, its tally. ARGV: the group, then each entry's id, level and movements.
local ids, of_level, removed = {}, {}, 0
for i = 2, #ARGV, 3 do
  local id, level, movements = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  ids[#ids + 1] = id
  of_level[level] = (of_level[level] or 0) + 1
  removed = removed + redis.call('XDEL', KEYS[1], id) * movements
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
for level, entries in pairs(of_level) do redis.call('HINCRBY', KEYS[2], level, entries) end
if removed > 0 then redis.call('HINCRBY', KEYS[2], 'waiting', -removed) end
return {}
