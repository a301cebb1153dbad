-- ending: what becomes of a held message when its attempt ends. Newer content wins over every outcome.
-- needs: dead dead_messages messages options nattempts ncrashes requeue tokens generations last_dead add_to any count_of forget now_ms start_newer to_ready unlock_to_wait
local function to_dead(mid, reason)
  local id = mid .. '#' .. (redis.call('HGET', generations, mid) or redis.call('HGET', tokens, mid) or '')
  reason = string.sub(reason, 1, 16384)
  local own = string.match(redis.call('HGET', options, mid) or ',', '^%d*,%d*') or ','
  local head = {count_of(nattempts, mid), count_of(ncrashes, mid), own, #reason, reason}
  redis.call('ZADD', dead, now_ms, id)
  redis.call('HSET', dead_messages, id, table.concat(head, '\31') .. (redis.call('HGET', messages, mid) or ''))
  redis.call('HSET', last_dead, mid, id)
end

-- One more crash of `mid`, which has left its place: to ready, or to the dead at the limit of crashes, 0 for none.
-- -> event kind
local function crash(mid, reason, kind, limit, first_to_front)
  local crashes = add_to(ncrashes, mid, 1)
  local newer, over = redis.call('HGET', requeue, mid), limit > 0 and crashes >= limit
  any.crashes, any.sides = true, true
  if over then to_dead(mid, reason) end
  if newer then
    start_newer(mid, newer)
  elseif over then
    forget(mid)
  else
    unlock_to_wait(mid)
    to_ready(mid, first_to_front and crashes == 1)
  end
  return over and 'dead' or kind
end
