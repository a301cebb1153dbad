-- visible: calls take(id, body) for up to `limit` messages, in order; removes phantoms, which have no body.
-- needs: messages attributes now_ms limit take
local PHANTOMS, WRITING_MS = 1000, 5000
local seen, left, met, taken, removed = {}, 0, 0, 0, 0

-- Some clients write the id first and the body by a command of its own; none of those makes 32-character ids.
local function being_sent(id)
  return #id ~= 32 and redis.call('ZSCORE', messages, id) + WRITING_MS > now_ms
end

local function meet(id)
  seen[id], met = true, met + 1
  local body = redis.call('HGET', attributes, id)
  if body then
    taken = taken + 1
    take(id, body)
  elseif not being_sent(id) then
    redis.call('ZREM', messages, id)
    redis.call('HDEL', attributes, id .. ':rc', id .. ':fr')
    removed = removed + 1
    return
  end
  left = left + 1 -- it may be in range still, with vt 0
end

local function take_visible()
  repeat
    local before = met
    local ids = redis.call('ZRANGEBYSCORE', messages, '-inf', now_ms, 'LIMIT', 0, limit + left)
    for _, id in ipairs(ids) do
      if taken < limit and not seen[id] then meet(id) end
    end
  until taken == limit or met == before or met - taken > PHANTOMS
  if taken > 0 then return 'ok' end
  return removed > PHANTOMS and 'again' or 'empty'
end

-- When the next look is worth while: {'empty', ms from now, or '' if nothing waits}.
local function empty()
  local first = redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')
  if not first[1] then return {'empty', ''} end
  return {'empty', string.format('%.0f', math.max(left > 0 and 100 or 1, first[2] - now_ms))}
end
