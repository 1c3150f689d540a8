-- Deducts units of one level for each of several operations, in their order.
-- ARGV, after those of the prelude, for each operation: the field of its dedup entry, its movement, its
-- idempotency key or '', `checked` of `key_may_be_lost`, its units, and when it expires, in ms since 1970.
-- Returns one answer per operation: the units left if they were deducted, or a text. A server that refuses
-- to write does not change the answers of those that write nothing.
local FIRST, EACH = 4, 6
local fields = {}
for i = FIRST, #ARGV, EACH do fields[#fields + 1] = ARGV[i] end
local remembered = find_remembered(fields)
local now, waiting = read_level(), count_waiting()
local deducted = {}
local called_at = millis()
local refused -- The server's error.

local function deduct(field, movement, key, checked, units, expires_at)
  if remembered[field] or deducted[field] then return 'duplicate' end
  if called_at >= expires_at then return 'conflict' end
  if not now then return 'absent' end
  local may_be_lost = key_may_be_lost(now, checked)
  if may_be_lost then return may_be_lost end
  local remaining = available(now) - units
  if remaining < 0 then return 'insufficient ' .. text(available(now)) end
  if waiting + movements.count >= journal_limit then return 'full' end
  if refused then return 'refused ' .. refused.err end
  now.on_hand, now.version = now.on_hand - units, now.version + 1
  add_movement(text(remaining), field, movement, key)
  deducted[field] = true
  return remaining
end

local function deduct_all()
  local answers = {}
  for i, field in ipairs(fields) do
    local first = FIRST + EACH * (i - 1)
    answers[i] = deduct(field, ARGV[first + 1], ARGV[first + 2], ARGV[first + 3],
      tonumber(ARGV[first + 4]), tonumber(ARGV[first + 5]))
  end
  return answers
end

local answers = deduct_all()
if movements.count == 0 then return answers end
refused = commit(now, waiting)
if not refused then return answers end
if #answers == movements.count then return refused end
-- Decide again: the units are still there.
now, movements.count, deducted = read_level(), 0, {}
return deduct_all()
