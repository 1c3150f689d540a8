-- Removes entries that are in SQL, and counts them for each level.
-- KEYS: the journal, what has departed from it. ARGV: the group, then the entries' ids.
local ids, of_level = {}, {}
for i = 2, #ARGV do
  ids[i - 1] = ARGV[i]
  local found = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])
  local fields = found[1] and found[1][2] or {}
  for j = 1, #fields, 2 do
    local level = fields[j] == 'level' and fields[j + 1]
    if level then of_level[level] = (of_level[level] or 0) + 1 end
  end
end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
for level, entries in pairs(of_level) do redis.call('HINCRBY', KEYS[2], level, entries) end
return {tostring(redis.call('XDEL', KEYS[1], unpack(ids)))}
