-- settle: end one attempt of a held message; the fast path handles plain successes
-- needs: options progress nattempts requeue done nunknowns add_to any count_of to_dead crash dedupe_until emit forget leave_circle level now_ms own_options start_newer to_due to_ready free unlock_to_wait turn in_lines end_member
-- -> whether its first attempt ended
local function wait_until(mid, token, backoff_ms, outcome)
  local is_first = unlock_to_wait(mid, token)
  if turn and in_lines().hold_line(mid, backoff_ms, outcome == 'hold') then return is_first end
  if backoff_ms > 0 then
    to_due(mid, now_ms + backoff_ms)
  else
    to_ready(mid, outcome == 'release' or outcome == 'hold')
  end
  return is_first
end

local function finish_done(mid, detail)
  local own = any.options and redis.call('HGET', options, mid)
  local _, dedupe_ms, taken_till = own_options(own or '')
  end_member('done', mid)
  dedupe_ms = tonumber(detail) or dedupe_ms or (taken_till and taken_till - now_ms) or 0
  if dedupe_ms > 0 then
    dedupe_until(mid, now_ms + dedupe_ms)
  else
    free({mid})
    redis.call('SADD', done, mid)
  end
  return 'done'
end

-- Only a retry keeps its attempt. A worker that doesn't know the job only adds to nunknowns, until a worker knows it.
local function count_ending(mid, outcome)
  if outcome ~= 'retry' then add_to(nattempts, mid, -1) end
  if outcome == 'unknown' then
    add_to(nunknowns, mid, 1)
    any.unknowns, any.sides = true, true
  elseif any.unknowns and outcome ~= 'release' then
    redis.call('HDEL', nunknowns, mid)
  end
end

-- Maximum number of tracebacks in a queue. Tracebacks of further messages are only logged by the worker.
local MAX_TRACEBACKS = 10000

-- The traceback of the latest failed attempt, and its number, after the progress report and the checkpoint.
local function keep_traceback(mid, traceback, is_first)
  local nkept = any.nprogress or 0
  local kept = nkept > 0 and redis.call('HGET', progress, mid)
  if not kept then
    if nkept >= MAX_TRACEBACKS then return end
    any.nprogress = nkept + 1
  end
  local before = string.match(kept or '', '^[^\30]*\30[^\30]*') or (kept or '') .. '\30'
  redis.call('HSET', progress, mid, before .. '\30' .. (is_first and 1 or count_of(nattempts, mid)) .. '\31' .. traceback)
end

-- -> event kind
local function settle(mid, token, outcome, detail, crash_limit)
  local newer = any.newer and redis.call('HGET', requeue, mid)
  if outcome == 'done' and not newer then return finish_done(mid, detail) end
  if newer and outcome == 'release' and level == 'all' then emit('superseded', mid, now_ms) end
  leave_circle(mid)
  if outcome == 'crashed' then return crash(mid, detail, 'crashed', crash_limit, true) end
  if outcome == 'dead' then to_dead(mid, detail) end
  if newer then
    if outcome == 'hold' and turn then in_lines().hold_key(mid, tonumber(detail) or 0) end
    start_newer(mid, newer)
  elseif outcome == 'dead' or outcome == 'expired' then
    end_member(outcome == 'dead' and 'dead' or 'cancelled', mid)
    forget(mid)
  else
    local backoff, traceback = string.match(detail or '', '^(%d*)\31?(.*)$')
    local is_first = wait_until(mid, token, tonumber(backoff) or 0, outcome)
    count_ending(mid, outcome)
    if traceback ~= '' then keep_traceback(mid, traceback, is_first) end
  end
  return (outcome == 'snooze' or outcome == 'unknown' or outcome == 'hold') and 'snoozed' or outcome
end
