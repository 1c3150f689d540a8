-- Removes entries that are in SQL. KEYS: the journal, the number of departures. ARGV: the group,
-- then the entries' ids.
local ids = {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
redis.call('XACK', KEYS[1], ARGV[1], unpack(ids))
redis.call('INCR', KEYS[2])
return {tostring(redis.call('XDEL', KEYS[1], unpack(ids)))}
