-- place: position_of(start, value), the last index before a place; false when that isn't in the topic, nil for no place.
-- needs: state index_at
local function position_of(start, value)
  value = tonumber(value)
  if start == 'earliest' then return state.first - 1 end
  if start == 'latest' then return state.last end
  if start == 'time' and value then return index_at(value) - 1 end
  if start ~= 'index' or not value then return nil end
  return value >= state.first and value <= state.last + 1 and value - 1
end
