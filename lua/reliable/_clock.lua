-- clock: now_ms, read once.
-- needs: now
local now_ms = tonumber(now)
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
