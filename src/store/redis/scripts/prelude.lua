-- What the scripts that change a level share.
-- KEYS: the level, its journal, the name under which the operation is remembered.
-- ARGV: the movement, the most entries of a journal, how long to remember the operation in ms, and
-- 1 where SQL need not be asked whether it has the operation's key.
local level, journal, name, movement = KEYS[1], KEYS[2], KEYS[3], ARGV[1]

-- Whole numbers in full: left to itself, Lua writes large ones with an exponent.
local function text(number) return string.format('%d', number) end

local function is_remembered() return redis.call('EXISTS', name) == 1 end

-- A level that came from SQL was lost here before, and with it perhaps what was remembered: for as
-- long as a key would be, only SQL can tell whether it was used.
local function is_unsure()
  if ARGV[4] == '1' then return false end
  local loaded = redis.call('HGET', level, 'loaded')
  return loaded and redis.call('TIME')[1] * 1000 < loaded + ARGV[3]
end

local function read_level()
  local read = redis.call('HMGET', level, 'on_hand', 'held', 'backorder_limit')
  if not read[1] then return nil end
  return tonumber(read[1]), tonumber(read[2]), tonumber(read[3])
end

-- Writes the level, the journal's entry and the memory. The first command is one that a server
-- out of memory, or unable to save, refuses, and once it was accepted so are the others: all or
-- nothing is written.
local function write(on_hand, held, backorder_limit)
  if redis.call('XLEN', journal) >= tonumber(ARGV[2]) then return {'full'} end
  redis.call('HSET', level, 'on_hand', text(on_hand), 'backorder_limit', text(backorder_limit))
  local version = text(redis.call('HINCRBY', level, 'version', 1))
  local entry = redis.call('XADD', journal, '*', 'level', level, 'movement', movement,
    'on_hand', text(on_hand), 'held', text(held), 'backorder_limit', text(backorder_limit),
    'version', version)
  local available = text(on_hand - held + backorder_limit)
  redis.call('SET', name, entry .. ' ' .. available .. ' ' .. movement, 'PX', ARGV[3])
  return {'written', available, version}
end
