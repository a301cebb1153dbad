-- ending: the outcome of a held message when its attempt ends. Newer content wins over every outcome.
-- needs: dead dead_messages messages options attempts_in count_in ncrashes requeue tokens generations last_dead meta add_to any count_of emit forget level max_content now_ms start_newer to_ready unlock_to_wait end_member
-- How many dead messages a queue keeps, and how long, unless its meta says otherwise.
local DEAD_MAX, DEAD_AGE_MS = 10000, 15552000000

-- Delete up to `most` of the oldest dead messages to keep the limits with `new` more. -> how many are left to delete
local function evict(most, new)
  local count = redis.call('ZCARD', dead)
  if count == 0 then return 0 end
  local limits = redis.call('HMGET', meta, 'dead_max', 'dead_age_ms')
  local surplus, oldest = count + new - stored(limits[1], 1e9, DEAD_MAX), now_ms - stored(limits[2], MAX_MS, DEAD_AGE_MS)
  local head = redis.call('ZRANGE', dead, 0, most, 'WITHSCORES')
  for i = 1, #head, 2 do
    local id, over = head[i], (i + 1) / 2 <= surplus
    if not over and tonumber(head[i + 1]) > oldest then return 0 end
    if i > 2 * most then return 1 end
    local mid = string.match(id, '^(.*)#[^#]*$') or id
    redis.call('ZREM', dead, id)
    redis.call('HDEL', dead_messages, id)
    if redis.call('HGET', last_dead, mid) == id then redis.call('HDEL', last_dead, mid) end
    add_to(meta, 'dead_evicted', 1)
    emit('evicted', mid, now_ms, '\31\31\31\31\31\31\31' .. (over and 'count' or 'age'))
  end
  return 0
end

-- Values with which a message is revived: its options without the slot in its line, and without moments of this life.
local function lasting_options(text)
  local mark, key = string.match(text, '^%d*,[@<>]?%d*,(o?)%-?%d*,(.+)$')
  return (string.match(text, '^%d*,%d*') or ',') .. (key and ',' .. mark .. ',' .. key or '')
end

-- Prefix of such a message's content. No call made by jobq begins like this.
local ON_DEAD = '{"job":"jobq.on_dead","args":["'

-- Once a worker knows a job with on_dead, each death adds a message for which a worker calls on_dead. The same call
-- writes it, so there is exactly one for each death. The death of such a message doesn't add another.
local function call_on_dead(id, content)
  if string.sub(content, 1, #ON_DEAD) == ON_DEAD or redis.call('HGET', meta, 'on_dead') ~= '1' then return end
  local mid = 'on_dead:' .. string.gsub(string.sub(id, -500), '^[\128-\191]+', '')
  local call = ON_DEAD .. string.gsub(string.gsub(id, '[\\"]', '\\%0'), '%c', '?') .. '"]}'
  if redis.call('HSETNX', messages, mid, call) == 0 then return end
  if #call > max_content then
    max_content = #call
    redis.call('HSET', meta, 'max_content', max_content)
  end
  to_ready(mid)
  if level == 'all' then emit('enqueued', mid, now_ms, '\31\31\31\31\31\31\31\31\31' .. #call) end
end

-- Each death makes room for itself and for one more, so that a queue over its limits returns to them.
local function to_dead(mid, reason)
  evict(2, 1)
  local id = mid .. '#' .. (redis.call('HGET', generations, mid) or redis.call('HGET', tokens, mid) or '')
  reason = string.sub(reason, 1, 16384)
  local own = lasting_options(redis.call('HGET', options, mid) or ',')
  local head = {count_in(attempts_in(mid)), count_of(ncrashes, mid), own, #reason, reason}
  redis.call('ZADD', dead, now_ms, id)
  local content = redis.call('HGET', messages, mid) or ''
  redis.call('HSET', dead_messages, id, table.concat(head, '\31') .. content)
  redis.call('HSET', last_dead, mid, id)
  call_on_dead(id, content)
end

-- Count a crash of `mid`, which has left its place, and move it to ready or, at the crash limit (0 = none), to dead.
-- -> event kind
local function crash(mid, reason, kind, limit, first_to_front)
  local crashes = add_to(ncrashes, mid, 1)
  local newer, over = redis.call('HGET', requeue, mid), limit > 0 and crashes >= limit
  any.crashes, any.sides = true, true
  if over then to_dead(mid, reason) end
  if newer then
    start_newer(mid, newer)
  elseif over then
    end_member('dead', mid)
    forget(mid)
  else
    unlock_to_wait(mid)
    to_ready(mid, first_to_front and crashes == 1, true)
  end
  return over and 'dead' or kind
end
