-- clock: the time that a script uses: its caller's time, else the server's.
-- needs:
local function time_ms(now)
  local given = tonumber(now)
  if given then return given end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
