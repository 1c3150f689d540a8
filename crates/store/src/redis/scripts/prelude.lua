-- What the scripts that change a level share.
-- KEYS: the level, its journal, that one's tally. ARGV: the most movements of a journal.
local level, journal, tally, most_waiting = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])

-- One call makes one entry, of so many movements at most.
local PER_ENTRY = 64

-- Whole numbers in full: left to itself, Lua writes large ones with an exponent.
local function text(number) return string.format('%d', number) end

-- The level; nothing where it is not there.
local function read_level()
  local read = redis.call('HMGET', level, 'on_hand', 'held', 'backorder_limit', 'version', 'loaded')
  if not read[1] then return nil end
  return {
    on_hand = tonumber(read[1]), held = tonumber(read[2]), backorder_limit = tonumber(read[3]),
    version = tonumber(read[4]), loaded = tonumber(read[5]),
  }
end

local function available(now) return now.on_hand - now.held + now.backorder_limit end

-- A level that came from SQL was lost here before, and with it perhaps what was remembered: for as
-- long as an operation would be, only SQL can tell whether its key was used.
local function is_unsure(now, sure, memory)
  if sure == '1' or not now.loaded then return false end
  return redis.call('TIME')[1] * 1000 < now.loaded + memory
end

-- How many movements wait in the journal. The entries that are there bound what the tally says: one
-- that was lost, or has outlived its journal, can neither stop sales nor let them go on for ever.
local function count_waiting()
  local entries = redis.call('XLEN', journal)
  local counted = tonumber(redis.call('HGET', tally, 'waiting')) or 0
  return math.max(entries, math.min(counted, entries * PER_ENTRY))
end

-- What is written of an operation, and remembered for so many milliseconds under its name; `now` is
-- the level after it.
local function note(now, name, movement, memory)
  return {name = name, line = text(available(now)) .. ' ' .. movement, memory = memory}
end

-- Writes the level that the noted operations led to, and remembers and journals them. The first
-- command is one that a server out of memory, or unable to save, refuses, and once it was accepted
-- so are the others: all or nothing is written.
local function commit(now, notes, waiting)
  local on_hand, limit, version = text(now.on_hand), text(now.backorder_limit), text(now.version)
  redis.call('HSET', level, 'on_hand', on_hand, 'backorder_limit', limit, 'version', version)
  local lines = {}
  for i, noted in ipairs(notes) do
    redis.call('SET', noted.name, noted.line, 'PX', noted.memory)
    lines[i] = noted.line
  end
  redis.call('XADD', journal, '*', 'level', level, 'movements', table.concat(lines, '\n'),
    'on_hand', on_hand, 'held', text(now.held), 'backorder_limit', limit, 'version', version)
  redis.call('HSET', tally, 'waiting', text(waiting + #notes))
end
