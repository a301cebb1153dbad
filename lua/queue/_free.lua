-- free: remove locks. A lock is a message's share of every limit, so only this fragment removes locks.
-- needs: locks tokens turn in_lines
-- given: if all are held, the key of each, or false; else nil
local function free(mids, given)
  if turn then in_lines().free_slots(mids, given) end
  redis.call('HDEL', locks, unpack(mids))
  redis.call('HDEL', tokens, unpack(mids))
end
