-- status(mid) -> one of Carmine's eight words. An expired lock reads as queued.
-- needs: messages backoffs locks requeue done now_ms
local function word_of(is_done, waiting, lock_at, not_before)
  local backoff = stored(not_before, LATEST_MS, 0) > now_ms
  if is_done then
    if waiting then return 'done-with-requeue' end
    return backoff and 'done-with-backoff' or 'done-awaiting-gc'
  end
  if stored(lock_at, LATEST_MS, 0) > now_ms then return waiting and 'locked-with-requeue' or 'locked' end
  return backoff and 'queued-with-backoff' or 'queued'
end

-- is_there: its content was read
local function status(mid, is_there)
  if not is_there and redis.call('HEXISTS', messages, mid) == 0 then return 'nil' end
  return word_of(redis.call('SISMEMBER', done, mid) == 1, redis.call('HEXISTS', requeue, mid) == 1,
    redis.call('HGET', locks, mid), redis.call('HGET', backoffs, mid))
end
