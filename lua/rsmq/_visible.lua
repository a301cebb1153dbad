-- visible: looks up to `limit` messages that may be received, in order; removes phantoms, which have no body.
-- needs: messages attributes now_ms limit
local PHANTOMS, WRITING_MS, now_text = 1000, 5000, string.format('%.0f', now_ms)
local ids, bodies, received, first_at = {}, {}, {}, {}
local taken, passed, removed = 0, 0, 0
repeat
  local found = redis.call('ZRANGEBYSCORE', messages, '-inf', now_text, 'LIMIT', taken + passed, limit - taken)
  local fields = {}
  for i, id in ipairs(found) do
    fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
  end
  local values = found[1] and redis.call('HMGET', attributes, unpack(fields))
  for i, id in ipairs(found) do
    local body = values[3 * i - 2]
    if body then
      taken = taken + 1
      ids[taken], bodies[taken] = id, body
      received[taken], first_at[taken] = math.floor(tonumber(values[3 * i - 1]) or 0), values[3 * i] or '0'
    elseif #id ~= 32 and redis.call('ZSCORE', messages, id) + WRITING_MS > now_ms then
      -- Some clients write the id first and the body by a command of its own; none of those makes such ids as ours.
      passed = passed + 1
    else
      redis.call('ZREM', messages, id)
      redis.call('HDEL', attributes, id .. ':rc', id .. ':fr')
      removed = removed + 1
    end
  end
until taken == limit or not found[1] or passed + removed > PHANTOMS

-- {'again'}: only phantoms so far; {'empty', when the next look is worth while, ms from now, '' if nothing waits}.
local nothing
if taken == 0 and removed > PHANTOMS then
  nothing = {'again'}
elseif taken == 0 then
  local score = redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')[2]
  nothing = {'empty', score and string.format('%.0f', math.max(passed > 0 and 100 or 1, score - now_ms)) or ''}
end
