-- batch: what readers of a group hold: a stretch of indexes under a token, with the end of its lease.
-- needs: held leases batches text
local function batch_of(token)
  local first = redis.call('ZSCORE', held, token)
  if not first then return nil end
  local last, deliveries = string.match(redis.call('HGET', batches, token), '^(%d+),(%d+)$')
  return tonumber(first), tonumber(last), tonumber(deliveries)
end

local function hold(token, first, last, deliveries, lease_at)
  redis.call('ZADD', held, first, token)
  redis.call('ZADD', leases, lease_at, token)
  redis.call('HSET', batches, token, text(last) .. ',' .. text(deliveries))
end

local function let_go(token)
  redis.call('ZREM', held, token)
  redis.call('ZREM', leases, token)
  redis.call('HDEL', batches, token)
end

-- Settle what `token` holds, up to `through` or all of it; 'stale' when it holds nothing any more.
local function settle(token, through)
  local first, last = batch_of(token)
  if not first then return 'stale' end
  through = tonumber(through) or last
  if through >= last then
    let_go(token)
  elseif through >= first then
    redis.call('ZADD', held, through + 1, token)
  end
  return 'ok'
end
