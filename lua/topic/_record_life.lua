-- record_life: how long a call's record is kept: ten minutes, or the longer time set for the previous call.
-- needs:
local function life_of(call)
  local left = call.record and redis.call('PTTL', call.key) or 0
  return string.format('%.0f', math.min(3153600000000, math.max(600000, left)))
end
