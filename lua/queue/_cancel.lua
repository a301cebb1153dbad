-- cancel: prevent an unfinished message from running, or reject the outcome of its current run.
-- needs: backoffs locks requeue attempts_in done now_ms stored LATEST_MS tick emit dedupe_until free leave_due leave_ready forget end_member
-- The holder notices the cancel at its next extend, and may run until its lock ends. Until then the mid is rejected, as
-- in a dedupe backoff, so that two runs can't overlap. Under an expired lock the walk collects the message.
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
