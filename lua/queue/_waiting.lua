-- waiting: whether a message waits, and is still the message that its caller saw.
-- needs: messages locks generations done
-- generation: '' before an attempt ended, '*' = any. -> the reason: 'nil' or 'changed'; nil if it waits unchanged
local function not_waiting(mid, generation)
  if redis.call('HEXISTS', messages, mid) == 0 then return 'nil' end
  if redis.call('HEXISTS', locks, mid) == 1 or redis.call('SISMEMBER', done, mid) == 1 then return 'changed' end
  if generation ~= '*' and (redis.call('HGET', generations, mid) or '') ~= generation then return 'changed' end
end
