-- free: take locks away. A lock is what its message occupies of every limit, so no other place removes one.
-- needs: locks tokens turn in_lines
-- own: the options of each, where all of them are held; else nil
local function free(mids, own)
  if turn then in_lines().free_slots(mids, own) end
  redis.call('HDEL', locks, unpack(mids))
  redis.call('HDEL', tokens, unpack(mids))
end
