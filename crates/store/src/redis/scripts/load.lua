-- Creates a level from its mirror in SQL, or as its last entry left it if that is later, unless Redis has the
-- level. Reads no entries but those from before the counters knew the last state of each level.
-- KEYS: the level, its journal, the journal's counters, the journal's entries that SQL refuses, the
-- mark of the shard.
-- ARGV: `since` as the counters had it before the mirror was read; the mirror's last entry, on_hand, held,
-- backorder_limit, version; the minimum increase of the version.
-- `scripts.rs` defines JOURNAL_VERSION, the highest version of journal entries that this script reads.
local level, journal, counters, rejected = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mirrored, mirror = ARGV[2], {ARGV[3], ARGV[4], ARGV[5], ARGV[6]}

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000000 + time[2])
if redis.call('EXISTS', level) == 1 then
  -- Release 0.1.0 calls the units `on_hand`. With another name it cannot sell them, because it would not
  -- know which operations this release has executed. `loaded` makes writers look for its dedup entries.
  local units = redis.call('HGET', level, 'on_hand')
  if units then
    redis.call('HSET', level, 'units', units, 'loaded', now)
    redis.call('HDEL', level, 'on_hand')
  end
  return {'there'}
end

-- Redis has lost its data. A consumer may still be applying entries that it has read before, so the mirror is
-- not final until the ledger is bound again. A mark with 0 does not show that: it may have been written late,
-- for a binding from before the loss.
local mark = redis.call('GET', KEYS[5])
if not mark or mark:find(' 0$') then return {'unbound'} end

-- If Redis has lost the counters since the mirror was read, or has lost writes in a failover, entries may have
-- been written, applied and lost since. Then the caller reads the mirror again.
local known = redis.call('HMGET', counters, 'since', 'tracked', 'last ' .. level)
local since, tracked, last = unpack(known)
if not since then redis.call('HSET', counters, 'since', now) end
if since ~= ARGV[1] then return {'again'} end

local last_id = '0-0'
local stream = redis.pcall('XINFO', 'STREAM', journal)
for i = 1, #stream, 2 do
  if stream[i] == 'last-generated-id' then last_id = stream[i + 1] end
end
if not tracked then
  tracked = last_id
  redis.call('HSET', counters, 'tracked', tracked)
end

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

-- The level in the latest of the entries up to `tracked`, and the id of the entry. The third result is the
-- version of an entry that this script cannot read.
local function last_entry()
  local upper = tracked
  while is_later(upper:gsub('^%(', ''), mirrored) do
    local page = redis.call('XREVRANGE', journal, upper, '(' .. mirrored, 'COUNT', 100)
    if #page == 0 then break end
    for _, entry in ipairs(page) do
      local fields = fields_of(entry)
      local version = fields.level == level and entry_version(fields)
      if version and version > JOURNAL_VERSION then return nil, nil, fields.v end
      local found = version and read(fields)
      if found then return found, entry[1] end
      upper = '(' .. entry[1]
    end
  end
  return nil, mirrored
end

-- The level after its last entry, and the version of a state or entry that this script cannot read.
local function last_state()
  if last then
    local version, state = last:match('^(%d+) (.*)$')
    if version ~= tostring(JOURNAL_VERSION) then return nil, version end
    return {state:match('^(%S+) (%S+) (%S+) (%S+)$')}
  end
  local found, id, unsupported = last_entry()
  if unsupported then return nil, unsupported end
  for _, entry in ipairs(redis.call('XRANGE', rejected, '-', '+')) do
    local fields = fields_of(entry)
    local was = fields.level == level and fields.entry
    if was and was:find('^%d+%-%d+$') and is_later(was, id) and read(fields) then
      found, id = read(fields), was
    end
  end
  return found
end
local found, unsupported = last_state()
if unsupported then return {'unsupported', unsupported} end
-- If Redis has lost writes that SQL has, the mirror is later.
local is_in_redis = found and tonumber(found[4]) >= tonumber(mirror[4])
local values = is_in_redis and found or mirror
-- Higher than the version of any earlier load, even of the same mirror, because no level changes a
-- million times per second.
local version = string.format('%.0f', math.max(values[4] + ARGV[7], now))
local fields = {'units', values[1], 'held', values[2], 'backorder_limit', values[3],
  'version', version}
-- A level that no entry ever changed has no dedup entries to lose, so it needs no `loaded`.
if found or mirrored ~= '0-0' then fields[9], fields[10] = 'loaded', now end
redis.call('HSET', level, unpack(fields))

-- The id of the next entry must be higher than the mirror's, or the entry would not update the mirror.
-- Redis's clock may be behind, so raise the journal's last id: add an entry and delete it at once.
if is_later(mirrored, last_id) then
  redis.call('XDEL', journal, redis.call('XADD', journal, mirrored, 'level', ''))
end
return {'loaded'}
