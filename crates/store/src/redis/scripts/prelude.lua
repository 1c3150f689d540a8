-- Shared by the scripts that change a level. `scripts.rs` defines PER_ENTRY, the maximum number of
-- movements in an entry, JOURNAL_VERSION, the version of the entries in their field `v`, and BUCKETS.
-- KEYS: the level, its journal, the journal's counters, the BUCKETS hashes of dedup entries.
-- ARGV: the journal's limit of movements, the length of a bucket in ms, what the movements of the call
-- have in common.
local level, journal, counters, journal_limit = KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1])
local bucket_millis, common = tonumber(ARGV[2]), ARGV[3]

-- Formats a whole number. By default, Lua writes large numbers with an exponent.
local function text(number) return string.format('%d', number) end

-- The server's clock, in milliseconds since 1970.
local function millis()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Reads the level. Returns nil if Redis does not have it, or has it as release 0.1.0 wrote it.
local function read_level()
  local read = redis.call('HMGET', level, 'units', 'held', 'backorder_limit', 'version', 'loaded')
  if not read[1] then return nil end
  return {
    on_hand = tonumber(read[1]), held = tonumber(read[2]), backorder_limit = tonumber(read[3]),
    version = tonumber(read[4]), loaded = read[5],
  }
end

local function available(now) return now.on_hand - now.held + now.backorder_limit end

-- Which of these operations have a dedup entry, by their fields.
local function find_remembered(fields)
  local found = {}
  for i = 4, 3 + BUCKETS do
    if redis.call('EXISTS', KEYS[i]) == 1 then
      for j, entry in ipairs(redis.call('HMGET', KEYS[i], unpack(fields))) do
        if entry then found[fields[j]] = true end
      end
    end
  end
  return found
end

-- The answer if Redis may have lost the dedup entry of a key, or nil. If Redis lost the level, it may have lost
-- dedup entries too. Until they would have expired, only SQL knows whether the key was used. `checked` is 1 if
-- SQL need not be asked, or when the level was loaded before SQL was asked. If it was loaded again since, Redis
-- may have lost the key since.
local function key_may_be_lost(now, checked)
  if checked == '1' or not now.loaded or checked == now.loaded then return nil end
  if millis() < now.loaded / 1000 + (BUCKETS - 2) * bucket_millis then
    return 'key_may_be_lost ' .. now.loaded
  end
end

-- How many movements wait in the journal. The number of entries bounds the counter, which is wrong if
-- Redis lost the counter or the journal. A wrong counter then neither blocks sales nor lifts the limit.
local function count_waiting()
  local entries = redis.call('XLEN', journal)
  local counted = tonumber(redis.call('HGET', counters, 'waiting')) or 0
  return math.max(entries, math.min(counted, entries * PER_ENTRY))
end

-- The movements for `commit`: fields and values of dedup entries in turn, lines of the journal, and the
-- fields of those with a key. Not a table for each movement, which would take a tenth of a script's time.
local movements = {count = 0, dedup = {}, lines = {}, with_key = {}}

-- Adds a movement that leaves `left` units available. `field` names its dedup entry.
local function add_movement(left, field, movement, key)
  local count = movements.count + 1
  movements.count = count
  movements.dedup[2 * count - 1] = field
  movements.dedup[2 * count] = left .. '\t' .. common .. '\t' .. movement
  movements.lines[count] = key .. '\t' .. left .. '\t' .. movement
  if key ~= '' then movements.with_key[#movements.with_key + 1] = field end
end

-- Writes dedup entries to the bucket of this time. `Buckets` in `idempotency.rs` does the same.
local function remember(entries)
  local bucket = math.floor(millis() / bucket_millis)
  local key = KEYS[4 + bucket % BUCKETS]
  redis.call('HSET', key, unpack(entries))
  redis.call('PEXPIREAT', key, text((bucket + BUCKETS - 1) * bucket_millis))
end

-- The attempts with `WATCH` whose idempotency keys these movements use. Such an attempt may be for another
-- level, so it does not notice that this level has changed. `Keys::attempt` in `keys.rs` names the same keys.
-- Must be called before a script writes: the caller has not named these keys, so a node of a cluster fails
-- here if their slot moves.
local function find_attempts()
  local prefix, attempts = 'attempt:' .. string.match(level, '{.-}') .. ':', {}
  for i, field in ipairs(movements.with_key) do attempts[i] = prefix .. field end
  if #attempts > 0 and redis.call('EXISTS', unpack(attempts)) > 0 then return attempts end
end

-- Writes the level after the movements, their dedup entries and the journal entry. HSET comes first, because
-- a server that is out of memory or cannot save refuses the first write of a script: then this writes nothing
-- and returns the error. If it is accepted, the other commands are accepted too.
local function commit(now, waiting)
  local attempts = find_attempts()
  local on_hand, limit, version = text(now.on_hand), text(now.backorder_limit), text(now.version)
  local written = redis.pcall('HSET', level, 'units', on_hand, 'backorder_limit', limit,
    'version', version)
  if type(written) == 'table' then return written end
  remember(movements.dedup)
  if attempts then redis.call('DEL', unpack(attempts)) end
  redis.call('XADD', journal, '*', 'v', JOURNAL_VERSION, 'level', level, 'common', common,
    'movements', table.concat(movements.lines, '\n'), 'on_hand', on_hand, 'held', text(now.held),
    'backorder_limit', limit, 'version', version)
  redis.call('HSET', counters, 'waiting', text(waiting + movements.count), 'last ' .. level,
    table.concat({JOURNAL_VERSION, on_hand, text(now.held), limit, version}, ' '))
end
