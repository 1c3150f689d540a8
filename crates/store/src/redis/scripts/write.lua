-- Writes a level that was computed from an earlier read.
-- KEYS, after those of the prelude: levels whose versions must be those in ARGV.
-- ARGV, after those of the prelude: the field of the dedup entry, the movement, the idempotency key or '',
-- `checked` of `key_may_be_lost`, on_hand, backorder_limit or '', a fencing token and its source or '' and
-- '', when the attempt expires, in ms since 1970, then the expected versions.
-- Returns a list of one answer: the units that are available after the write, or a text.
local field, movement, key, checked = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local first_level, first_version = 4 + BUCKETS, 13
if find_remembered({field})[field] then return {'duplicate'} end
if millis() >= tonumber(ARGV[12]) then return {'conflict'} end
local now = read_level()
if not now then return {'absent'} end
local may_be_lost = key_may_be_lost(now, checked)
if may_be_lost then return {may_be_lost} end
local token, source = ARGV[10], ARGV[11]
if token ~= '' then
  local last = redis.call('HMGET', level, 'fence', 'fence_source')
  if last[2] == source and tonumber(last[1]) > tonumber(token) then return {'fenced'} end
end
for i = first_level, #KEYS do
  if redis.call('HGET', KEYS[i], 'version') ~= ARGV[first_version + i - first_level] then
    return {'conflict'}
  end
end
local before = available(now)
now.on_hand, now.version = tonumber(ARGV[8]), now.version + 1
now.backorder_limit = tonumber(ARGV[9]) or now.backorder_limit
if available(now) < 0 then return {'insufficient ' .. text(before)} end
local waiting = count_waiting()
if waiting >= journal_limit then return {'full'} end
add_movement(text(available(now)), field, movement, key)
local refused = commit(now, waiting)
if refused then return refused end
if token ~= '' then redis.call('HSET', level, 'fence', token, 'fence_source', source) end
return {available(now)}
