#!lua flags=allow-oom
-- Takes the lease of a journal for a consumer, and reads entries that it may apply until the lease ends.
-- Works if Redis is out of memory, or a full journal could never be emptied.
-- KEYS: the lease, the stream with the entries.
-- ARGV: the consumer's token, the lease in ms, the id to start from, the maximum number of entries.
-- Returns nil if another consumer has the lease.
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return false end
return redis.call('XRANGE', KEYS[2], ARGV[3], '+', 'COUNT', ARGV[4])
