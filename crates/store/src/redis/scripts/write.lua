-- Writes a level that was computed from an earlier read.
-- KEYS, after those of the prelude: the operation's dedup key, then levels whose versions must be those
-- in ARGV.
-- ARGV, after that of the prelude: the movement, the lifetime of the dedup entry in ms, 1 if SQL does
-- not have the key, on_hand, backorder_limit or '', a fencing token and its source or '' and '', when
-- the attempt expires, in ms since 1970, then the expected versions.
local dedup_key, movement, dedup_ttl, key_checked = KEYS[4], ARGV[2], ARGV[3], ARGV[4]
if redis.call('EXISTS', dedup_key) == 1 then return {'duplicate'} end
if millis() >= tonumber(ARGV[9]) then return {'conflict'} end
local now = read_level()
if not now then return {'absent'} end
if key_may_be_lost(now, key_checked, dedup_ttl) then return {'key_may_be_lost'} end
local token, source = ARGV[7], ARGV[8]
if token ~= '' then
  local last = redis.call('HMGET', level, 'fence', 'fence_source')
  if last[2] == source and tonumber(last[1]) > tonumber(token) then return {'fenced'} end
end
for i = 5, #KEYS do
  if redis.call('HGET', KEYS[i], 'version') ~= ARGV[5 + i] then return {'conflict'} end
end
local before = available(now)
now.on_hand, now.version = tonumber(ARGV[5]), now.version + 1
now.backorder_limit = tonumber(ARGV[6]) or now.backorder_limit
if available(now) < 0 then return {'insufficient ' .. text(before)} end
local waiting = count_waiting()
if waiting >= journal_limit then return {'full'} end
local refused = commit(now, {new_movement(now, dedup_key, movement, dedup_ttl)}, waiting)
if refused then return refused end
if token ~= '' then redis.call('HSET', level, 'fence', token, 'fence_source', source) end
return {'written ' .. text(available(now)) .. ' ' .. text(now.version)}
