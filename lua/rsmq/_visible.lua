-- visible: up to `limit` messages that may be received, in order; removes phantoms, which have no body.
-- needs: messages attributes now_ms limit
local PHANTOMS, WRITING_MS = 1000, 5000
local ids, bodies, received, first_at = {}, {}, {}, {}
local taken, passed, removed = 0, 0, 0

-- Some clients write the id first and the body by a command of its own; none of those makes 32-character ids.
local function being_sent(id)
  return #id ~= 32 and redis.call('ZSCORE', messages, id) + WRITING_MS > now_ms
end

local function meet(id, body, times, at)
  if body then
    taken = taken + 1
    ids[taken], bodies[taken] = id, body
    received[taken], first_at[taken] = math.floor(tonumber(times) or 0), at or '0'
  elseif being_sent(id) then
    passed = passed + 1
  else
    redis.call('ZREM', messages, id)
    redis.call('HDEL', attributes, id .. ':rc', id .. ':fr')
    removed = removed + 1
  end
end

-- 'ok' | 'empty' | 'again': only phantoms so far.
local function look()
  repeat
    local found = redis.call('ZRANGEBYSCORE', messages, '-inf', now_ms, 'LIMIT', taken + passed, limit - taken)
    local fields = {}
    for i, id in ipairs(found) do
      fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
    end
    local values = found[1] and redis.call('HMGET', attributes, unpack(fields))
    for i, id in ipairs(found) do meet(id, values[3 * i - 2], values[3 * i - 1], values[3 * i]) end
  until taken == limit or not found[1] or passed + removed > PHANTOMS
  if taken > 0 then return 'ok' end
  return removed > PHANTOMS and 'again' or 'empty'
end

-- When the next look is worth while: {'empty', ms from now, or '' if nothing waits}.
local function empty()
  local first = redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')
  if not first[1] then return {'empty', ''} end
  return {'empty', string.format('%.0f', math.max(passed > 0 and 100 or 1, first[2] - now_ms))}
end
