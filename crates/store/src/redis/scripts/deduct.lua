-- Deducts units of one level for each of several operations, in their order.
-- KEYS, after those of the prelude: the dedup key of each operation.
-- ARGV, after that of the prelude, for each operation: its movement, the lifetime of its dedup entry in
-- ms, 1 if SQL does not have its key, its units, and when it expires, in ms since 1970.
-- Returns one answer per operation. A server that refuses to write does not change the answers of those
-- that write nothing.
local some_remembered = redis.call('EXISTS', unpack(KEYS, 4)) > 0
local now, waiting = read_level(), count_waiting()
local movements, deducted = {}, {}
local called_at = millis()
local refused -- The server's error.

local function is_remembered(dedup_key)
  return deducted[dedup_key] or some_remembered and redis.call('EXISTS', dedup_key) == 1
end

local function deduct(dedup_key, movement, dedup_ttl, key_checked, units, expires_at)
  if is_remembered(dedup_key) then return 'duplicate' end
  if called_at >= expires_at then return 'conflict' end
  if not now then return 'absent' end
  if key_may_be_lost(now, key_checked, dedup_ttl) then return 'key_may_be_lost' end
  local remaining = available(now) - units
  if remaining < 0 then return 'insufficient ' .. text(available(now)) end
  if waiting + #movements >= journal_limit then return 'full' end
  if refused then return 'refused ' .. refused.err end
  now.on_hand, now.version = now.on_hand - units, now.version + 1
  movements[#movements + 1] = new_movement(now, dedup_key, movement, dedup_ttl)
  deducted[dedup_key] = true
  return 'written ' .. text(remaining) .. ' ' .. text(now.version)
end

local function deduct_all()
  local answers = {}
  for i = 4, #KEYS do
    local first = 5 * (i - 4) + 2
    answers[i - 3] = deduct(KEYS[i], ARGV[first], ARGV[first + 1], ARGV[first + 2],
      tonumber(ARGV[first + 3]), tonumber(ARGV[first + 4]))
  end
  return answers
end

local answers = deduct_all()
if #movements == 0 then return answers end
refused = commit(now, movements, waiting)
if not refused then return answers end
if #answers == #movements then return refused end
-- Decide again: the units are still there.
now, movements, deducted = read_level(), {}, {}
return deduct_all()
