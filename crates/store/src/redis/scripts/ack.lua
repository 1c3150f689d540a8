#!lua flags=allow-oom
-- Ends a consumer's lease: removes entries that are in SQL, and sets aside entries that SQL refuses.
-- If the lease was lost, removes nothing: if Redis has lost data since, an id may be that of another entry.
-- Counts the applied entries of each level in both cases. A count that is too high is harmless: it only
-- makes a concurrent load of the level start again.
-- KEYS: the stream with the entries, the journal's counters, the lease, the refused entries.
-- ARGV: the token, the number of applied entries, each one's id, level and number of movements; then the
-- id, the number of movements and the reason of each refused entry.
local stream, counters, lease, rejected = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local is_held = redis.call('GET', lease) == ARGV[1]
local first_refused = 3 + 3 * ARGV[2]
local removed = 0
local function remove(id, movements) removed = removed + redis.call('XDEL', stream, id) * movements end

for i = 3, first_refused - 1, 3 do
  redis.call('HINCRBY', counters, ARGV[i + 1], 1)
  if is_held then remove(ARGV[i], ARGV[i + 2]) end
end
if not is_held then return {} end
for i = first_refused, #ARGV, 3 do
  local id, movements, reason = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  for _, entry in ipairs(redis.call('XRANGE', stream, id, id)) do
    local fields = entry[2]
    fields[#fields + 1], fields[#fields + 2] = 'entry', id
    fields[#fields + 1], fields[#fields + 2] = 'reason', reason
    redis.call('XADD', rejected, '*', unpack(fields))
    remove(id, movements)
  end
end
if removed > 0 then redis.call('HINCRBY', counters, 'waiting', -removed) end
redis.call('DEL', lease)
return {}
