-- leases: how long the slots of a limit are held.
-- needs: holders state stored text keep_state
-- After the clock stepped back, a lease can't last longer than the longest lease seen. -> that duration, ms
local function shortened(longest, lease_ms, now_ms)
  longest = math.min(86400000, math.max(stored(longest) or 0, lease_ms))
  local latest = text(now_ms + longest)
  for _, holder in ipairs(redis.call('ZRANGE', holders, '(' .. latest, '+inf', 'BYSCORE', 'LIMIT', 0, 1000)) do
    redis.call('ZADD', holders, latest, holder)
  end
  return longest
end

local function keep_holders(longest)
  redis.call('PEXPIRE', holders, text(longest + 1000))
  redis.call('HSET', state, 'lease_ms', text(longest))
  keep_state(longest + 1000)
end
