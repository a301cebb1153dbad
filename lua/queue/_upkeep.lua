-- upkeep: bounded maintenance: move due messages to ready, and check a part of the circle.
-- needs: messages options circle left_circle locks nattempts ncrashes requeue done nunknowns generations progress any max_lease now_ms rarely

-- Remove all traces of finished messages. They have neither lock nor backoff; most of the other hashes are empty.
local function collect(mids)
  redis.call('HDEL', messages, unpack(mids))
  for _, key in ipairs(any.sides and {nattempts, ncrashes, nunknowns, generations, requeue, options, progress} or {}) do
    if redis.call('HLEN', key) > 0 then redis.call('HDEL', key, unpack(mids)) end
  end
  redis.call('SREM', done, unpack(mids))
end

-- noted: drop; done: remove all traces; lock live: rotate; lock expired, missing or unreadable: recover
local function walk(limit, crash_limit)
  local mids = redis.call('LRANGE', circle, '0', limit - 1)
  if #mids == 0 then return end
  redis.call('LTRIM', circle, #mids, '-1')
  local noted = any.left_circle and redis.call('SMISMEMBER', left_circle, unpack(mids)) or {}
  local finished = redis.call('SMISMEMBER', done, unpack(mids))
  local expiries = redis.call('HMGET', locks, unpack(mids))
  local stale, collected, live, expired, longest = {}, {}, {}, {}, now_ms + max_lease
  local ncollected = 0
  for i = 1, #mids do
    local mid = mids[i]
    if noted[i] == 1 then
      stale[#stale + 1] = mid
    elseif finished[i] == 1 then
      ncollected = ncollected + 1
      collected[ncollected] = mid
    else
      local expiry = tonumber(expiries[i])
      if expiry and expiry > now_ms then
        live[#live + 1] = mid
        -- Only a clock that stepped back leaves a lock longer than any lease.
        if expiry > longest then redis.call('HSET', locks, mid, string.format('%d', longest)) end
      else
        expired[#expired + 1] = mid
      end
    end
  end
  if #stale > 0 then redis.call('SREM', left_circle, unpack(stale)) end
  if #collected > 0 then collect(collected) end
  if #live > 0 then redis.call('RPUSH', circle, unpack(live)) end
  for _, mid in ipairs(expired) do rarely().recover(mid, crash_limit) end
end
