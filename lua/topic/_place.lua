-- place: position_of(start, value), the last index before a place, which was checked; false when that isn't in the topic.
-- needs: index_at state
local function position_of(start, value)
  value = tonumber(value)
  if start == 'earliest' then return state.first - 1 end
  if start == 'latest' then return state.last end
  if start == 'time' then return index_at(value) - 1 end
  return value >= state.first and value <= state.last + 1 and value - 1
end
