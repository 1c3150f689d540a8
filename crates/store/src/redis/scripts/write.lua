-- Writes a level that was computed from one read before.
-- KEYS, beside the shared ones: the name under which the operation is remembered, then levels whose
-- versions must still be those in ARGV.
-- ARGV, beside the shared one: its movement, how long to remember it in ms, 1 where SQL need not be
-- asked whether it has its key; on_hand, backorder_limit or nothing, a fencing token and its source
-- or nothing, then those versions.
local name, movement, memory, sure = KEYS[4], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', name) == 1 then return {'duplicate'} end
local now = read_level()
if not now then return {'absent'} end
if is_unsure(now, sure, memory) then return {'unsure'} end
local token, source = ARGV[7], ARGV[8]
if token ~= '' then
  local last = redis.call('HMGET', level, 'fence', 'fence_source')
  if last[2] == source and tonumber(last[1]) > tonumber(token) then return {'fenced'} end
end
for i = 5, #KEYS do
  if redis.call('HGET', KEYS[i], 'version') ~= ARGV[4 + i] then return {'stale'} end
end
local before = available(now)
now.on_hand, now.version = tonumber(ARGV[5]), now.version + 1
now.backorder_limit = tonumber(ARGV[6]) or now.backorder_limit
if available(now) < 0 then return {'short ' .. text(before)} end
local waiting = count_waiting()
if waiting >= most_waiting then return {'full'} end
commit(now, {note(now, name, movement, memory)}, waiting)
if token ~= '' then redis.call('HSET', level, 'fence', token, 'fence_source', source) end
return {'written ' .. text(available(now)) .. ' ' .. text(now.version)}
