-- What the scripts that change a level share.
-- KEYS: the level, its journal, then the names under which the operation is remembered.
-- ARGV: the movement, the most entries of a journal, how long to remember each name in ms (two, the
-- second unused where there is but one name), the number of names.
local level, journal, movement = KEYS[1], KEYS[2], ARGV[1]
local names = tonumber(ARGV[5])

-- Whole numbers in full: left to itself, Lua writes large ones with an exponent.
local function text(number) return string.format('%.0f', number) end

local function is_remembered()
  for i = 1, names do
    if redis.call('EXISTS', KEYS[2 + i]) == 1 then return true end
  end
  return false
end

local function read_level()
  local read = redis.call('HMGET', level, 'on_hand', 'held', 'backorder_limit')
  if not read[1] then return nil end
  return tonumber(read[1]), tonumber(read[2]), tonumber(read[3])
end

-- Writes the level, the journal's entry and the memories. The first command is one that a server
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
  for i = 1, names do
    local memory = entry .. ' ' .. available .. ' ' .. movement
    redis.call('SET', KEYS[2 + i], memory, 'PX', ARGV[2 + i])
  end
  return {'written', available, version}
end
