-- call: one caller's calls are numbered; the reply of the last one is replayed, an older number is refused.
-- needs: last_call number
local recorded = redis.call('GET', last_call)
local recorded_number, recorded_reply = string.match(recorded or '', '^(%d+) (.*)$')

local function refused()
  return recorded_number and tonumber(recorded_number) > tonumber(number)
end

local function replayed()
  return recorded_number and tonumber(recorded_number) == tonumber(number)
end

local function record_call(reply)
  -- A caller that was given a longer life keeps it.
  local left = recorded and redis.call('PTTL', last_call) or 0
  redis.call('SET', last_call, number .. ' ' .. reply, 'PX', string.format('%.0f', math.min(3153600000000, math.max(600000, left))))
end
