-- Reads levels and the id of their journal's last entry in one snapshot.
-- KEYS: the journal, then the levels.
-- Returns the highest id that the journal ever had, then four counters for each level.
local journal = redis.pcall('XINFO', 'STREAM', KEYS[1])
local answer = {'0-0'}
for i = 1, #journal, 2 do
  if journal[i] == 'last-generated-id' then answer[1] = journal[i + 1] end
end
for i = 2, #KEYS do
  local read = redis.call('HMGET', KEYS[i], 'units', 'held', 'backorder_limit', 'version', 'on_hand')
  read[1] = read[1] or read[5] -- Release 0.1.0 calls the units `on_hand`.
  for j = 1, 4 do answer[#answer + 1] = read[j] or '' end
end
return answer
