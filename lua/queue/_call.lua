-- call: one caller's calls are numbered; the last one is replayed, older and closed ones are refused.
-- A record reads number 0x1e words 0x1e hand-outs, the latter two joined by 0x1f; 'x' before a closed number. What is
-- unusual about a hand-out follows its mid behind 0x1d.
-- needs: last_call caller number
if not caller or #caller > 64 or not string.find(caller, '^[!-~]+$') then
  refuse('caller', '1 to 64 printable ASCII characters without blanks')
end
local recorded = redis.call('GET', last_call)
local recorded_number = recorded and string.match(recorded, '^x?%d+')
number = whole('number', number, 0, 9007199254740991)

local function refused()
  return recorded_number
    and (string.sub(recorded_number, 1, 1) == 'x' or tonumber(recorded_number) > number)
end

local function replayed()
  return recorded_number and tonumber(recorded_number) == number
end

local function record_call(words, handed)
  local text = string.format('%.0f', number) .. '\30' .. table.concat(words, '\31') .. '\30' .. table.concat(handed or {}, '\31')
  redis.call('SET', last_call, text, 'PX', 600000)
end
