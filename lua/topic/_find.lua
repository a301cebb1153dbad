-- find: index_at(time), the lowest index appended then or later; one after the last if there is none.
-- needs: entries index_of state
local function at_of(entry) return math.min(9007199254740991, tonumber(string.match(entry[1], '%d+$'))) end

local function index_at(time)
  local low, high = state.first, state.last + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = entries(middle, state.last, 1)[1]
    if not entry or at_of(entry) >= time then high = middle else low = index_of(entry) + 1 end
  end
  local entry = entries(low, state.last, 1)[1]
  return entry and index_of(entry) or state.last + 1
end
