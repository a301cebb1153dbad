-- upkeep: bounded work on what waits: due messages to ready, one stretch of the circle walked.
-- needs: messages locks backoffs nattempts ncrashes generations requeue options progress due circle left_circle done meta crash_limit max_lease now_ms
local function promote(limit)
  for _, mid in ipairs(redis.call('ZRANGE', due, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)) do
    leave_due(mid)
    if redis.call('SISMEMBER', done, mid) == 0 then
      to_ready(mid)
    else
      redis.call('HINCRBY', meta, 'deduped', -1)
      local newer = redis.call('HGET', requeue, mid)
      if newer then start_newer(mid, newer) else forget(mid) end
    end
  end
end

local function recover(mid)
  local attempt = redis.call('HGET', nattempts, mid) or ''
  local kind = crash(mid, 'lock expired', 'recovered')
  emit(kind, mid, now_ms, '\31' .. attempt .. '\31\31\31\31\31\31lock expired')
end

-- Remove all traces of finished ones. They hold no lock and have no backoff; most of the other hashes are empty.
local function collect(mids)
  for _, key in ipairs({messages, nattempts}) do redis.call('HDEL', key, unpack(mids)) end
  for _, key in ipairs({ncrashes, generations, requeue, options, progress}) do
    if redis.call('HLEN', key) > 0 then redis.call('HDEL', key, unpack(mids)) end
  end
  redis.call('SREM', done, unpack(mids))
end

-- noted or nil: drop; done: remove all traces; lock live: rotate; lock expired: recover
local function walk(limit)
  local mids = redis.call('LRANGE', circle, 0, limit - 1)
  if #mids == 0 then return end
  redis.call('LTRIM', circle, #mids, -1)
  local noted = redis.call('SCARD', left_circle) > 0 and redis.call('SMISMEMBER', left_circle, unpack(mids)) or {}
  local finished = redis.call('SMISMEMBER', done, unpack(mids))
  local expiries = redis.call('HMGET', locks, unpack(mids))
  local stale, collected, live, longest = {}, {}, {}, now_ms + max_lease
  for i, mid in ipairs(mids) do
    local expiry = tonumber(expiries[i])
    if noted[i] == 1 then
      stale[#stale + 1] = mid
    elseif finished[i] == 1 then
      collected[#collected + 1] = mid
    elseif expiry and expiry > now_ms then
      live[#live + 1] = mid
      -- Only a clock that stepped back leaves a lock longer than any lease.
      if expiry > longest then redis.call('HSET', locks, mid, string.format('%.0f', longest)) end
    elseif expiry then
      recover(mid)
    end
  end
  if #stale > 0 then redis.call('SREM', left_circle, unpack(stale)) end
  if #collected > 0 then collect(collected) end
  if #live > 0 then redis.call('RPUSH', circle, unpack(live)) end
end
