-- tickets: one for each waiting message that isn't promised to a client whose blocking pop took a ticket. If tickets
-- stay promised for a second, their holders may be dead, so as many are issued again, as `-` for any message.
-- needs: meta tickets issued_at now_ms nwaiting nfree
local function mend_tickets()
  local promised = nwaiting - nfree
  if promised > 0 and math.abs(now_ms - issued_at) >= 1000 then
    for first = 1, promised, 1000 do
      local some = {}
      for i = first, math.min(promised, first + 999) do some[#some + 1] = '-' end
      redis.call('LPUSH', tickets, unpack(some))
    end
    redis.call('HSET', meta, 'issued_at', string.format('%.0f', now_ms))
  elseif nwaiting == 0 and nfree > 0 then
    redis.call('DEL', tickets)
  elseif promised < 0 then
    redis.call('LTRIM', tickets, 0, nwaiting - 1)
  else
    return
  end
  nfree = nwaiting
end
