-- attempts: how often a message was handed out, without releases.
-- needs: locks nattempts done
-- The first attempt is written when it ends in anything but done. -> text; false where it wasn't handed out
local function attempts_in(mid)
  return redis.call('HGET', nattempts, mid)
    or (redis.call('HEXISTS', locks, mid) == 1 or redis.call('SISMEMBER', done, mid) == 1) and '1'
end
