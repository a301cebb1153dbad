-- free: take locks away. A lock is what its message occupies of every limit, so no other place removes one.
-- needs: locks tokens turn in_lines
-- given: the key of each, or false, where all of them are held; else nil
local function free(mids, given)
  if turn then in_lines().free_slots(mids, given) end
  redis.call('HDEL', locks, unpack(mids))
  redis.call('HDEL', tokens, unpack(mids))
end
