-- call: these scripts also accept calls without a number. With last_call two arguments come first: number, now.
-- needs: last_call open_call record_call
local call, first_arg, now = nil, 1, ''
if last_call then
  local number = ARGV[1] and #ARGV[1] <= 15 and string.match(ARGV[1], '^%d+$') and tonumber(ARGV[1])
  first_arg, now = 3, ARGV[2]
  if number and now and (now == '' or (#now <= 15 and string.match(now, '^%d+$'))) then
    call = open_call(last_call, number)
  end
end

local function refused() return last_call and (not call or call.refused) end

-- The words that the same call recorded if it was made before.
local function kept_words()
  if not call or not call.kept then return nil end
  local words = {}
  for word in string.gmatch(call.kept, '[^\31]+') do words[#words + 1] = word end
  return words
end

local function record_words(words)
  if call then record_call(call, table.concat(words, '\31')) end
end
