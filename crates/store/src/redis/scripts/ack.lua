#!lua flags=allow-oom
-- Ends a consumer's lease: removes entries that are in SQL, and sets aside entries that SQL refuses.
-- If the lease was lost, removes nothing: if Redis has lost data since, an id may be that of another entry.
-- KEYS: the stream with the entries, the journal's counters, the lease, the refused entries.
-- ARGV: the token, the number of applied entries, each one's id and number of movements; then the id, the
-- number of movements and the reason of each refused entry.
local stream, counters, lease, rejected = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if redis.call('GET', lease) ~= ARGV[1] then return {} end
local first_refused = 3 + 2 * ARGV[2]
local removed = 0
local function remove(id, movements) removed = removed + redis.call('XDEL', stream, id) * movements end

for i = 3, first_refused - 1, 2 do remove(ARGV[i], ARGV[i + 1]) end
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
