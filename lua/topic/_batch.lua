-- batch: messages held by readers of a group: a range of indexes under a token, with the end of its lease.
-- needs: group held leases batches text
-- If the end of a batch is lost, it ends before the next held batch, or at the cursor.
local function end_of(first)
  local next_held = redis.call('ZRANGE', held, '(' .. text(first), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local cursor = tonumber(redis.call('HGET', group, 'cursor'))
  return math.min(cursor or first, next_held[2] and tonumber(next_held[2]) - 1 or math.huge)
end

local function batch_of(token)
  local first = tonumber(redis.call('ZSCORE', held, token))
  if not first then return nil end
  local stored = redis.call('HGET', batches, token)
  if not (first >= 0 and first <= 9007199254740000) then return nil end
  local last, deliveries = string.match(stored or '', '^(%d+),(%d+)$')
  if not last or #stored > 30 then return first, end_of(first), 0 end
  return first, tonumber(last), tonumber(deliveries)
end

local function hold(token, first, last, deliveries, lease_at)
  redis.call('ZADD', held, first, token)
  redis.call('ZADD', leases, lease_at, token)
  redis.call('HSET', batches, token, text(last) .. ',' .. text(deliveries))
end

-- The types of `held` and `batches` were checked before; the type of `leases` perhaps wasn't.
local function let_go(token)
  redis.call('ZREM', leases, token)
  redis.call('ZREM', held, token)
  redis.call('HDEL', batches, token)
end
