-- Takes units, if there are so many. ARGV, beside the shared ones: units.
local units = tonumber(ARGV[5])
if is_remembered() then return {'duplicate'} end
local on_hand, held, backorder_limit = read_level()
if not on_hand then return {'absent'} end
if is_unsure() then return {'unsure'} end
local available = on_hand - held + backorder_limit
if available < units then return {'short', text(available)} end
return write(on_hand - units, held, backorder_limit)
