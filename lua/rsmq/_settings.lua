-- settings: the queue's settings, as any client may have written them: '15.5' and '30 s' are read as 15 and 30, and a
-- value that no command would accept as a number isn't a number.
-- needs: attributes
local vt_text, delay_text, maxsize_text, totalsent_text, totalrecv_text = unpack(
  redis.call('HMGET', attributes, 'vt', 'delay', 'maxsize', 'totalsent', 'totalrecv'))
local exists = vt_text and delay_text and maxsize_text

local function whole_part(text, otherwise)
  local digits = text and string.match(text, '^%s*([+-]?%d+)')
  return digits and #digits <= 15 and tonumber(digits) or otherwise
end

-- How often a message was received; 0 if it is not a number.
local function times(text)
  local number = tonumber(text)
  if number and number >= 0 and number <= 9007199254740990 then return math.floor(number) end
  return 0
end

-- A total after `by` more; a total without a number restarts.
local function added(text, by) return string.format('%.0f', whole_part(text, 0) + by) end
