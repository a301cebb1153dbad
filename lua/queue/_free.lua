-- free: take locks away. A lock is what its message occupies of every limit, so no other place removes one.
-- needs: locks tokens turn in_lines
local function free(...)
  if turn then in_lines().free_slots(...) end
  redis.call('HDEL', locks, ...)
  redis.call('HDEL', tokens, ...)
end
