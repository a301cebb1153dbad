-- wake: end the rest of the queue's callers, and the idle wait of one child.
-- needs: eoq_backoff wake nwake
local function wake_up()
  redis.call('DEL', eoq_backoff)
  if nwake == 0 then nwake = redis.call('LPUSH', wake, '1') end
end
