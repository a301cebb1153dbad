-- place: position_of(start, value), the last index before a place: earliest, latest, index, time; else a refusal.
-- needs: state index_at
local function position_of(start, value)
  value = tonumber(value)
  if start == 'earliest' then return state.first - 1 end
  if start == 'latest' then return state.last end
  if not value then return nil, 'ERR start must be earliest, latest, index or time, the last two with a number' end
  if start == 'time' then return index_at(value) - 1 end
  if start ~= 'index' then return nil, 'ERR start must be earliest, latest, index or time' end
  if value >= state.first and value <= state.last + 1 then return value - 1 end
end
