-- Writes a level that was computed from one read before.
-- KEYS, beside the shared ones: levels whose versions must still be those in ARGV.
-- ARGV, beside the shared ones: on_hand, backorder_limit or nothing, then those versions.
if is_remembered() then return {'duplicate'} end
local on_hand, held, backorder_limit = read_level()
if not on_hand then return {'absent'} end
for i = 8, #ARGV do
  if redis.call('HGET', KEYS[2 + names + i - 7], 'version') ~= ARGV[i] then return {'stale'} end
end
local new_limit = tonumber(ARGV[7]) or backorder_limit
if ARGV[6] - held + new_limit < 0 then
  return {'short', text(on_hand - held + backorder_limit)}
end
return write(tonumber(ARGV[6]), held, new_limit)
