-- Creates a level from its mirror in SQL, unless it is there.
-- KEYS: the level, its journal, that one's tally.
-- ARGV: the tally's `since` and its count of this level as they were before the mirror was read; the
-- mirror's last entry, on_hand, held, backorder_limit, version; by how much the version leaps at
-- least.
local level, journal, tally = KEYS[1], KEYS[2], KEYS[3]
if redis.call('EXISTS', level) == 1 then return {'there'} end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])

-- Entries of this level that left meanwhile are in SQL, and perhaps not in the mirror as it was
-- read. Nor is it known what left where that itself was lost meanwhile.
local before = redis.call('HMGET', tally, 'since', level)
if not before[1] then redis.call('HSETNX', tally, 'since', now) end
if before[1] ~= ARGV[1] or (before[2] or '') ~= ARGV[2] then return {'again'} end
local mirrored = ARGV[3]
local counters = {ARGV[4], ARGV[5], ARGV[6], ARGV[7]}

-- The four counters of an entry; nothing where somebody else has written it.
local function read(fields)
  local found = {fields.on_hand, fields.held, fields.backorder_limit, fields.version}
  for i = 1, 4 do
    if not found[i] or not found[i]:find('^-?%d+$') or #found[i] > 18 then return nil end
  end
  return found
end

-- Where only the level was lost, the journal may know a later one than the mirror.
local function last_entry()
  local upper = '+'
  while true do
    local page = redis.call('XREVRANGE', journal, upper, '(' .. mirrored, 'COUNT', 100)
    if #page == 0 then return nil end
    for _, entry in ipairs(page) do
      local fields = {}
      for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
      local found = fields.level == level and read(fields)
      if found then return found end
      upper = '(' .. entry[1]
    end
  end
end
counters = last_entry() or counters
-- Later than that of any load before, though the mirror may be the same: no level changes a million
-- times a second.
local version = string.format('%.0f', math.max(counters[4] + ARGV[8], now))
local fields = {'on_hand', counters[1], 'held', counters[2], 'backorder_limit', counters[3],
  'version', version}
-- One that was never sold from has no key in SQL that could be forgotten here.
if mirrored ~= '0-0' then
  fields[9], fields[10] = 'loaded', string.format('%.0f', time[1] * 1000)
end
redis.call('HSET', level, unpack(fields))

-- The clock may be behind the one before: what is journaled from now on comes after what SQL has,
-- or it would change no mirror. The entry that brings this about is gone at once.
local function parts(id)
  local millis, number = id:match('^(%d+)-(%d+)$')
  return tonumber(millis), tonumber(number)
end
local last = '0-0'
local stream = redis.pcall('XINFO', 'STREAM', journal)
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then last = stream[i + 1] end
end
local millis, number = parts(last)
local mirrored_millis, mirrored_number = parts(mirrored)
if millis < mirrored_millis or millis == mirrored_millis and number < mirrored_number then
  redis.call('XDEL', journal, redis.call('XADD', journal, mirrored, 'level', ''))
end
return {'loaded'}
