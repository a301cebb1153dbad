-- free: take locks away. A lock is what its message occupies of every limit, so no other place removes one.
-- needs: locks tokens
local function free(...)
  redis.call('HDEL', locks, ...)
  redis.call('HDEL', tokens, ...)
end
