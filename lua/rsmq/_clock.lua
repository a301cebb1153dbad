-- clock: now_us and now_ms, read once; `now` was checked.
-- needs: now
local now_us = tonumber(now)
if not now_us then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now_ms = math.floor(now_us / 1000)
