-- status(mid) -> one of Carmine's eight words. An expired lock reads as queued.
-- needs: messages locks backoffs requeue done now_ms
local function status(mid)
  if redis.call('HEXISTS', messages, mid) == 0 then return 'nil' end
  local waiting = redis.call('HEXISTS', requeue, mid) == 1
  local backoff = (tonumber(redis.call('HGET', backoffs, mid)) or 0) > now_ms
  if redis.call('SISMEMBER', done, mid) == 1 then
    if waiting then return 'done-with-requeue' end
    return backoff and 'done-with-backoff' or 'done-awaiting-gc'
  end
  if (tonumber(redis.call('HGET', locks, mid)) or 0) > now_ms then
    return waiting and 'locked-with-requeue' or 'locked'
  end
  return backoff and 'queued-with-backoff' or 'queued'
end
