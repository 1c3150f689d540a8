#!lua flags=allow-oom
-- Writes the id of the binding and its beat, unless Redis has another id. `allow-oom`, because the
-- journals of a Redis that is full must still be emptied.
-- KEYS: the binding. ARGV: the id, the beat, 1 to replace another id.
local found = redis.call('GET', KEYS[1])
if found and ARGV[3] ~= '1' and found:match('^%S*') ~= ARGV[1] then return {found} end
local value = ARGV[1] .. ' ' .. ARGV[2]
redis.call('SET', KEYS[1], value)
return {value}
