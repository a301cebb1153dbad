-- ending: what becomes of a held message when its attempt ends. Newer content wins over every outcome.
-- needs: dead dead_messages last_dead requeue ncrashes nattempts options tokens locks generations meta now_ms
local function bury(mid, reason)
  local attempts = redis.call('HGET', nattempts, mid) or '0'
  local id = mid .. '#' .. (redis.call('HGET', generations, mid) or redis.call('HGET', tokens, mid) or '')
  local head = {attempts, redis.call('HGET', ncrashes, mid) or '0', redis.call('HGET', options, mid) or ',',
    #reason, reason}
  redis.call('ZADD', dead, now_ms, id)
  redis.call('HSET', dead_messages, id, table.concat(head, '\31') .. redis.call('HGET', messages, mid))
  redis.call('HSET', last_dead, mid, id)
end

-- One more crash of `mid`, which has left its place: to ready, or to the dead at the limit. -> event kind
local function crash(mid, reason, kind, first_to_front)
  local crashes = redis.call('HINCRBY', ncrashes, mid, 1)
  local newer = redis.call('HGET', requeue, mid)
  local over = tonumber(crash_limit) > 0 and crashes >= tonumber(crash_limit)
  if over then bury(mid, reason) end
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
