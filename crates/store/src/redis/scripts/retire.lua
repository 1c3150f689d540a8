-- Deletes a journal's consumers that hold no entries and were idle for at least the given time. If such
-- a consumer still runs, Redis creates it again when it next reads.
-- KEYS: the journal. ARGV: the group, the time in milliseconds.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return {} end -- Redis lost the journal or its group.
for _, consumer in ipairs(consumers) do
  local info = {}
  for i = 1, #consumer, 2 do info[consumer[i]] = consumer[i + 1] end
  if info.pending == 0 and info.idle >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], info.name)
  end
end
return {}
