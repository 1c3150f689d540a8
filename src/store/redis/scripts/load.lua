-- Creates a level from its mirror in SQL, unless it is there.
-- KEYS: the level, its journal, the number of departures from the journal.
-- ARGV: that number as it was before the mirror was read, the mirror's last entry, on_hand, held,
-- backorder_limit, version, and by how much the version leaps at least.
local level, journal = KEYS[1], KEYS[2]
if redis.call('EXISTS', level) == 1 then return {'there'} end
-- Entries that left meanwhile are in SQL, and perhaps not in the mirror as it was read.
if (redis.call('GET', KEYS[3]) or '') ~= ARGV[1] then return {'again'} end
local on_hand, held, backorder_limit, version = ARGV[3], ARGV[4], ARGV[5], ARGV[6]

-- Where only the level was lost, the journal may know a later one than the mirror.
local function last_entry()
  local upper = '+'
  while true do
    local page = redis.call('XREVRANGE', journal, upper, '(' .. ARGV[2], 'COUNT', 100)
    if #page == 0 then return nil end
    for _, entry in ipairs(page) do
      local fields = {}
      for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
      if fields.level == level then return fields end
      upper = '(' .. entry[1]
    end
  end
end
local last = last_entry()
if last then
  on_hand, held, backorder_limit, version =
    last.on_hand, last.held, last.backorder_limit, last.version
end
-- Later than that of any load before, though the mirror may be the same: no level changes a million
-- times a second.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HSET', level, 'on_hand', on_hand, 'held', held, 'backorder_limit', backorder_limit,
  'version', string.format('%.0f', math.max(version + ARGV[7], now)))
return {'loaded'}
