-- Removes a journal's consumers that hold nothing and were not heard of for so long; one that lives
-- all the same is there again with its next entry. KEYS: the journal. ARGV: the group, milliseconds.
local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])
if consumers.err then return {} end -- The journal, or its group, was lost.
for _, consumer in ipairs(consumers) do
  local of = {}
  for i = 1, #consumer, 2 do of[consumer[i]] = consumer[i + 1] end
  if of.pending == 0 and of.idle >= tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], of.name)
  end
end
return {}
