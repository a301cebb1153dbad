-- retain: drop messages beyond the limits, oldest first, at most 10,000 indexes at a time.
-- needs: meta log base marks index_at now_ms state text
local function allowed_from()
  local from = state.first
  if state.max_count > 0 then from = math.max(from, state.last - state.max_count + 1) end
  if state.max_bytes > 0 and state.bytes > state.max_bytes then
    -- A mark is scored with the bytes before it.
    local mark = redis.call('ZRANGE', marks, state.bytes - state.max_bytes, '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
      or redis.call('ZRANGE', marks, 0, 0, 'REV')[1]
    from = math.max(from, math.min(tonumber(mark) or from, state.last + 1))
  end
  -- Bisection finds the index, so this isn't done at every append.
  if state.max_age > 0 and math.abs(now_ms - state.aged_at) >= math.min(1000, state.max_age) then
    from = math.max(from, index_at(now_ms - state.max_age))
    redis.call('HSET', meta, 'aged_at', text(now_ms))
  end
  return from
end

local function drop_below(from)
  from = math.min(from, state.first + 10000)
  if from <= state.first then return end
  redis.call('XTRIM', log, 'MINID', text(from))
  if state.base_to >= state.first then redis.call('XTRIM', base, 'MINID', text(from)) end
  for _, mark in ipairs(redis.call('ZRANGE', marks, 0, 99)) do
    if (tonumber(mark) or 0) < from then redis.call('ZREM', marks, mark) end
  end
  redis.call('HSET', meta, 'first', from)
  state.first = from
end
