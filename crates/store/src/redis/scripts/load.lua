-- Creates a level from its mirror in SQL, unless Redis has the level.
-- KEYS: the level, its journal, the journal's counters, the journal's entries that SQL refuses.
-- ARGV: `since` and the number of acknowledged entries of this level, both as the counters had them
-- before the mirror was read; the mirror's last entry, on_hand, held, backorder_limit, version; the
-- minimum increase of the version.
-- `scripts.rs` defines JOURNAL_VERSION, the highest version of journal entries that this script reads.
local level, journal, counters, rejected = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

if redis.call('EXISTS', level) == 1 then return {'there'} end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])

-- If entries of this level were acknowledged since the mirror was read, the mirror is too old. If
-- Redis lost the counters since then, this is unknown. In both cases the caller reads the mirror again.
local before = redis.call('HMGET', counters, 'since', level)
if not before[1] then redis.call('HSETNX', counters, 'since', now) end
if before[1] ~= ARGV[1] or (before[2] or '') ~= ARGV[2] then return {'again'} end
local mirrored = ARGV[3]
local values = {ARGV[4], ARGV[5], ARGV[6], ARGV[7]}

-- The format version of an entry. Returns nil if the field is invalid.
local function entry_version(fields)
  if not fields.v then return 1 end
  return fields.v:find('^[1-9]%d*$') and tonumber(fields.v)
end

-- The level in an entry. Returns nil if a field is invalid, because another program wrote it.
local function read(fields)
  local found = {fields.on_hand, fields.held, fields.backorder_limit, fields.version}
  for i = 1, 4 do
    if not found[i] or not found[i]:find('^-?%d+$') or #found[i] > 18 then return nil end
  end
  return found
end

local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  return fields
end

local function parts(id)
  local millis, number = id:match('^(%d+)-(%d+)$')
  return tonumber(millis), tonumber(number)
end

local function is_later(id, other)
  local millis, number = parts(id)
  local other_millis, other_number = parts(other)
  return millis > other_millis or millis == other_millis and number > other_number
end

-- The latest level in the journal, which is later than the mirror if Redis lost only the level, and the
-- id of its entry. The third result is the version of an entry that this script cannot read.
local function last_entry()
  local upper = '+'
  while true do
    local page = redis.call('XREVRANGE', journal, upper, '(' .. mirrored, 'COUNT', 100)
    if #page == 0 then return nil, mirrored end
    for _, entry in ipairs(page) do
      local fields = fields_of(entry)
      local version = fields.level == level and entry_version(fields)
      if version and version > JOURNAL_VERSION then return nil, nil, fields.v end
      local found = version and read(fields)
      if found then return found, entry[1] end
      upper = '(' .. entry[1]
    end
  end
end
local found, id, unsupported = last_entry()
if unsupported then return {'unsupported', unsupported} end
for _, entry in ipairs(redis.call('XRANGE', rejected, '-', '+')) do
  local fields = fields_of(entry)
  local was = fields.level == level and fields.entry
  if was and was:find('^%d+%-%d+$') and is_later(was, id) and read(fields) then
    found, id = read(fields), was
  end
end
values = found or values
-- Higher than the version of any earlier load, even of the same mirror, because no level changes a
-- million times per second.
local version = string.format('%.0f', math.max(values[4] + ARGV[8], now))
local fields = {'on_hand', values[1], 'held', values[2], 'backorder_limit', values[3],
  'version', version}
-- A level that no entry ever changed has no dedup entries to lose, so it needs no `loaded`.
if mirrored ~= '0-0' then
  fields[9], fields[10] = 'loaded', string.format('%.0f', time[1] * 1000)
end
redis.call('HSET', level, unpack(fields))

-- The id of the next entry must be higher than the mirror's, or the entry would not update the mirror.
-- Redis's clock may be behind, so raise the journal's last id: add an entry and delete it at once.
local last = '0-0'
local stream = redis.pcall('XINFO', 'STREAM', journal)
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then last = stream[i + 1] end
end
if is_later(mirrored, last) then
  redis.call('XDEL', journal, redis.call('XADD', journal, mirrored, 'level', ''))
end
return {'loaded'}
