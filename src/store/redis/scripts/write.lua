-- Writes a level that was computed from one read before.
-- KEYS, beside the shared ones: levels whose versions must still be those in ARGV.
-- ARGV, beside the shared ones: on_hand, backorder_limit or nothing, a fencing token and its source
-- or nothing, then those versions.
if is_remembered() then return {'duplicate'} end
local on_hand, held, backorder_limit = read_level()
if not on_hand then return {'absent'} end
if is_unsure() then return {'unsure'} end
local token, source = ARGV[7], ARGV[8]
if token ~= '' then
  local last = redis.call('HMGET', level, 'fence', 'fence_source')
  if last[2] == source and tonumber(last[1]) > tonumber(token) then return {'fenced'} end
end
for i = 4, #KEYS do
  if redis.call('HGET', KEYS[i], 'version') ~= ARGV[5 + i] then return {'stale'} end
end
local new_on_hand, new_limit = tonumber(ARGV[5]), tonumber(ARGV[6]) or backorder_limit
if new_on_hand - held + new_limit < 0 then
  return {'short', text(on_hand - held + backorder_limit)}
end
local answer = write(new_on_hand, held, new_limit)
if token ~= '' and answer[1] == 'written' then
  redis.call('HSET', level, 'fence', token, 'fence_source', source)
end
return answer
