#!lua flags=allow-oom
-- Writes the key of the binding or the mark of a shard, if it still has the expected value. `allow-oom`, because
-- the journals of a Redis that is full must still be emptied.
-- KEYS: the key or the mark. ARGV: its new value, the expected one: '' if there is no key, '*' for any.
if ARGV[2] ~= '*' and (redis.call('GET', KEYS[1]) or '') ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
