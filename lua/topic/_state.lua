-- state: the topic's numbers, 0 where none is kept, and now_ms, which steps back by more than a minute only.
-- needs: now meta
local state = {}
do
  local names = {'last', 'last_at', 'first', 'base_to', 'longest', 'bytes', 'marked', 'aged_at', 'max_age',
    'max_count', 'max_bytes', 'compact', 'tombstone_ms', 'phase', 'cut', 'at'}
  local values = redis.call('HMGET', meta, unpack(names))
  for i, name in ipairs(names) do state[name] = tonumber(values[i]) or 0 end
  state.first = math.max(1, state.first)
end

local now_ms = tonumber(now)
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
if now_ms < state.last_at and state.last_at - now_ms <= 60000 then now_ms = state.last_at end

local function text(number) return string.format('%.0f', number) end
