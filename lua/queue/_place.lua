-- place: a live mid is in exactly one of ready, due, circle; each list holds at most one copy of it.
-- A mid that leaves a list out of turn leaves a copy, noted as stale; if the mid returns, the copy is valid again.
-- needs: backoffs ready due circle options left_ready left_circle any wake_up turn in_lines sealed not_plain plain_before
-- back: the mid was handed out and returns.
local function to_ready(mid, front, back)
  if turn and in_lines().to_line(mid, front, back) then return wake_up() end
  if not any.left_ready or redis.call('SREM', left_ready, mid) == 0 then
    redis.call(front and 'LPUSH' or 'RPUSH', ready, mid)
  end
  wake_up()
end

-- is_over: it is done, and its mid is taken until then
local function to_due(mid, at, is_over)
  local score = string.format('%d', at)
  redis.call('HSET', backoffs, mid, score)
  plain_before(at)
  redis.call('ZADD', due, score, mid)
  any.due = true
  if redis.call('ZRANK', due, mid) == 0 then wake_up() end
  if sealed and turn and not is_over then
    local key = in_lines().key_of(redis.call('HGET', options, mid))
    if key then in_lines().keep_key(key, at) end
  end
end

local function leave_due(mid)
  redis.call('ZREM', due, mid)
  redis.call('HDEL', backoffs, mid)
end

-- How many copies aren't noted. If the list is empty (another program emptied it), a note would drop the next copy of the mid.
local function unnoted(list, notes) return redis.call('LLEN', list) - redis.call('SCARD', notes) end

local function leave_ready(mid)
  if turn and in_lines().leave_line(mid) then return end
  if unnoted(ready, left_ready) <= 0 then return end
  not_plain()
  redis.call('SADD', left_ready, mid)
  any.left_ready = true
end

-- Counted once: in one call nothing enters the circle before something leaves it.
local unnoted_in_circle
local function leave_circle(mid)
  unnoted_in_circle = unnoted_in_circle or unnoted(circle, left_circle)
  if unnoted_in_circle <= 0 then return end
  not_plain()
  unnoted_in_circle = unnoted_in_circle - redis.call('SADD', left_circle, mid)
  any.left_circle = true
end
