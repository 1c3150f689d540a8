-- Takes units of one level for each of several operations, in their order, if there are so many.
-- KEYS, beside the shared ones: for each the name under which it is remembered.
-- ARGV, beside the shared one: for each its movement, how long to remember it in ms, 1 where SQL
-- need not be asked whether it has its key, and units. Answers for each.
local some_remembered = redis.call('EXISTS', unpack(KEYS, 4)) > 0
local now, waiting = read_level(), count_waiting()
local notes, taken = {}, {}

local function is_remembered(name)
  return taken[name] or some_remembered and redis.call('EXISTS', name) == 1
end

local function take(name, movement, memory, sure, units)
  if is_remembered(name) then return 'duplicate' end
  if not now then return 'absent' end
  if is_unsure(now, sure, memory) then return 'unsure' end
  local remaining = available(now) - units
  if remaining < 0 then return 'short ' .. text(available(now)) end
  if waiting + #notes >= most_waiting then return 'full' end
  now.on_hand, now.version = now.on_hand - units, now.version + 1
  notes[#notes + 1], taken[name] = note(now, name, movement, memory), true
  return 'written ' .. text(remaining) .. ' ' .. text(now.version)
end

local answers = {}
for i = 4, #KEYS do
  local first = 4 * (i - 4) + 2
  answers[i - 3] = take(KEYS[i], ARGV[first], ARGV[first + 1], ARGV[first + 2],
    tonumber(ARGV[first + 3]))
end
if #notes > 0 then commit(now, notes, waiting) end
return answers
