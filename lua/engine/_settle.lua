-- settle: end held attempts; plain successes are gathered and written together.
-- needs: messages locks tokens nattempts requeue options done due meta level now_ms FIRST count
local finished, any_newer = {}, redis.call('HLEN', requeue) > 0
local any_options = redis.call('HLEN', options) > 0

local function wait_until(mid, token, backoff_ms, front)
  unlock_to_wait(mid, token)
  if backoff_ms > 0 then to_due(mid, now_ms + backoff_ms) else to_ready(mid, front) end
end

local function finish_done(mid, detail)
  local own = any_options and redis.call('HGET', options, mid)
  local dedupe_ms = tonumber(detail) or (own and tonumber(string.match(own, ',(%d+)$'))) or 0
  if dedupe_ms == 0 then
    finished[#finished + 1] = mid
    return 'done'
  end
  leave_circle(mid)
  unlock(mid)
  redis.call('SADD', done, mid)
  redis.call('HINCRBY', meta, 'deduped', 1)
  to_due(mid, now_ms + dedupe_ms)
  return 'done'
end

-- The holder's attempt at `mid` ends as `outcome`. -> event kind
local function settle(mid, token, outcome, detail)
  local newer = any_newer and redis.call('HGET', requeue, mid)
  if outcome == 'done' and not newer then return finish_done(mid, detail) end
  if newer and outcome == 'release' and level == 'all' then emit('superseded', mid, now_ms) end
  leave_circle(mid)
  if outcome == 'crashed' then return crash(mid, detail, 'crashed', true) end
  if outcome == 'dead' then bury(mid, detail) end
  if newer then
    start_newer(mid, newer)
  elseif outcome == 'dead' then
    forget(mid)
  else
    if outcome ~= 'retry' then redis.call('HINCRBY', nattempts, mid, -1) end
    wait_until(mid, token, tonumber(detail) or 0, outcome == 'release')
  end
  return outcome == 'snooze' and 'snoozed' or outcome
end

local function write_finished()
  if #finished == 0 then return end
  redis.call('HDEL', locks, unpack(finished))
  redis.call('HDEL', tokens, unpack(finished))
  redis.call('SADD', done, unpack(finished))
end

local function holders()
  local mids = {}
  for i = 1, count do mids[i] = ARGV[FIRST + 6 * (i - 1)] end
  return count > 0 and redis.call('HMGET', tokens, unpack(mids)) or mids
end

-- Six arguments per ending, from ARGV[FIRST] on; a stale one changes nothing.
local function settle_all(words)
  local held, ended, released = holders(), {}, {}
  for i = 1, count do
    local at = FIRST + 6 * (i - 1)
    local mid, token, outcome, detail = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    if ended[mid] or held[i] ~= token then words[i] = 'stale' else
      words[i], ended[mid] = 'ok', true
      tick()
      if outcome == 'release' then -- no attempt that ended, so no event
        released[#released + 1] = {mid, token, 'release', detail}
      else
        local kind = settle(mid, token, outcome, detail)
        emit(kind, mid, now_ms - ARGV[at + 4], ARGV[at + 5])
        if outcome == 'crashed' and kind == 'dead' then words[i] = 'dead' end
      end
    end
  end
  -- Each goes to the front of ready, the first one last.
  for i = #released, 1, -1 do settle(unpack(released[i])) end
  write_finished()
end
