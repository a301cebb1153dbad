-- call: a numbered call that comes again gets its first answer again; an older one is refused.
-- A record reads number 0x1e words joined by 0x1f. With last_call two arguments come first: number, now.
-- needs: last_call
local first_arg, number, now = 1, nil, ''
if last_call then first_arg, number, now = 3, ARGV[1], ARGV[2] end
if number then number = #number <= 15 and string.match(number, '^%d+$') and tonumber(number) end
local recorded_number, recorded_words
if last_call then
  recorded_number, recorded_words = string.match(redis.call('GET', last_call) or '', '^(%d+)\30(.*)$')
end

local function refused()
  if not last_call then return false end
  local known_now = now == '' or (now and #now <= 15 and string.match(now, '^%d+$'))
  return not number or not known_now or (recorded_number and tonumber(recorded_number) > number)
end

local function replayed()
  if not recorded_number or tonumber(recorded_number) ~= number then return nil end
  local words = {}
  for word in string.gmatch(recorded_words, '[^\31]+') do words[#words + 1] = word end
  return words
end

local function record_call(words)
  if not last_call then return end
  redis.call('SET', last_call, string.format('%.0f', number) .. '\30' .. table.concat(words, '\31'), 'PX', 600000)
end
