-- cancel: see to it that a message that isn't over doesn't run, or that its current run's outcome is refused.
-- needs: backoffs locks requeue attempts_in done now_ms stored LATEST_MS tick emit dedupe_until free leave_due leave_ready forget end_member
-- Its holder notices it at its next extend, and may run until its lock ends: until then the mid is taken, as in a
-- dedupe backoff, so that two runs of it can't overlap. Under an expired lock the walk collects it.
local function cancel_held(mid)
  local lock_at = stored(redis.call('HGET', locks, mid), LATEST_MS, 0)
  redis.call('HDEL', requeue, mid)
  if lock_at > now_ms then
    dedupe_until(mid, lock_at)
  else
    free({mid})
    redis.call('SADD', done, mid)
  end
end

local function cancel(mid, word)
  tick()
  emit('cancelled', mid, now_ms, '\31' .. (attempts_in(mid) or ''))
  if word == 'done-with-requeue' then
    return redis.call('HDEL', requeue, mid)
  end
  end_member('cancelled', mid)
  if redis.call('HEXISTS', locks, mid) == 1 then
    cancel_held(mid)
  else
    if redis.call('HEXISTS', backoffs, mid) == 1 then leave_due(mid) else leave_ready(mid) end
    forget(mid)
  end
end
