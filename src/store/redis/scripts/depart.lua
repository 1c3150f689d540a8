-- Removes entries that are in SQL, and counts them for each level.
-- KEYS: the journal, what has departed from it. ARGV: the group, then each entry's id and level.
local ids, of_level, departed = {}, {}, 0
for i = 2, #ARGV, 2 do
  local id, level = ARGV[i], ARGV[i + 1]
  ids[#ids + 1] = id
  -- Another consumer may have removed it before: it departs once.
  if redis.call('XDEL', KEYS[1], id) == 1 then
    departed = departed + 1
    of_level[level] = (of_level[level] or 0) + 1
  end
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
for level, entries in pairs(of_level) do redis.call('HINCRBY', KEYS[2], level, entries) end
return {tostring(departed)}
