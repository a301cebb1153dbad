-- recover: messages whose backoff ended or whose lock expired.
-- needs: messages due meta locks nattempts requeue done add_to crash emit forget is_mid leave_due now_ms set_aside start_newer to_ready options turn in_lines
local function promote(limit)
  for _, mid in ipairs(redis.call('ZRANGE', due, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)) do
    leave_due(mid)
    if redis.call('SISMEMBER', done, mid) == 0 then
      to_ready(mid)
    else
      add_to(meta, 'deduped', -1)
      local newer = redis.call('HGET', requeue, mid)
      if newer then start_newer(mid, newer) else forget(mid) end
    end
  end
end

-- The job that a call written by jobq names at its beginning: no other process reports the attempt of a lost worker.
-- '' for encrypted content, and for names that an event can't hold.
local JOB = '{"job": ?"([^"\\%c%s\128-\255]+)"'
local function job_in(content)
  local name = string.match(content, '^' .. JOB) or string.match(content, '^jobq%-s1 %S+ %x+\n' .. JOB)
  return name and #name <= 200 and name or ''
end

-- `mid` was taken out of the circle. If it has no lock, another program removed it, and no crash is counted.
local function recover(mid, crash_limit)
  if not is_mid(mid) then return set_aside(mid) end
  if redis.call('HEXISTS', locks, mid) == 0 then
    if redis.call('HEXISTS', messages, mid) == 1 then to_ready(mid) end
    return
  end
  local attempt = redis.call('HGET', nattempts, mid) or '1'
  local job = job_in(redis.call('HGET', messages, mid) or '')
  local key = turn and in_lines().key_in(redis.call('HGET', options, mid))
  local kind = crash(mid, 'lock expired', 'recovered', crash_limit)
  emit(kind, mid, now_ms, job .. '\31' .. attempt .. '\31\31\31\31\31\31lock expired' .. (key and '\31\31\31\31' .. key or ''))
end
