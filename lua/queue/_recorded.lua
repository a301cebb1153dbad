-- recorded: what a caller's record keeps of its last reply.
-- needs: recorded
local function recorded_part(pattern)
  local items = {}
  local part = string.match(recorded, pattern)
  if not part or part == '' then return items end
  for item in string.gmatch(part .. '\31', '([^\31]*)\31') do items[#items + 1] = item end
  return items
end

local function recorded_words()
  return recorded_part('^[^\30]*\30([^\30]*)')
end
