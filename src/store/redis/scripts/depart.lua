-- Removes entries that are in SQL, and counts them for each level: also those that Redis had lost
-- before, and those that another consumer was faster with, which costs a load one more look.
-- KEYS: the journal, what has departed from it. ARGV: the group, then each entry's id and level.
local ids, of_level = {}, {}
for i = 2, #ARGV, 2 do
  local level = ARGV[i + 1]
  ids[#ids + 1] = ARGV[i]
  of_level[level] = (of_level[level] or 0) + 1
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
for level, entries in pairs(of_level) do redis.call('HINCRBY', KEYS[2], level, entries) end
return {tostring(redis.call('XDEL', KEYS[1], unpack(ids)))}
