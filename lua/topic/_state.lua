-- state: read the topic's numbers, 0 where none is stored or the stored value is not a number.
-- needs: meta
local state = {}
do
  local names = {'last', 'last_at', 'first', 'base_to', 'longest', 'bytes', 'marked', 'aged_at', 'max_age',
    'max_count', 'max_bytes', 'compact', 'tombstone_ms', 'phase', 'cut', 'at'}
  local values = redis.call('HMGET', meta, unpack(names))
  for i = 1, #names do
    local number = tonumber(values[i])
    state[names[i]] = number and number >= 0 and number <= 9007199254740000 and number - number % 1 or 0
  end
  if state.phase > 3 then state.phase = 0 end
  -- If `last` is lost, the other numbers are also read from the streams.
  if state.last > 0 then
    if state.first > state.last + 1 then state.first = state.last + 1 end
    if state.base_to > state.last then state.base_to = state.last end
    if state.cut > state.last then state.cut = state.last end
  end
  if state.first < 1 then state.first = 1 end
end

local function text(number) return string.format('%.0f', number) end
