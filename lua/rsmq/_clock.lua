-- clock: now_us and now_ms, the time that a script uses: its caller's checked time, else the server's.
-- needs:
local now_us, now_ms
local function read_clock(now)
  now_us = tonumber(now)
  if not now_us then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  now_ms = math.floor(now_us / 1000)
end
