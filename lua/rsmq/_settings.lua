-- settings: the queue's, as any client may have written them: '15.5' and '30 s' are read as far as they are whole.
-- needs: attributes
local vt_text, delay_text, maxsize_text, totalsent_text, totalrecv_text = unpack(
  redis.call('HMGET', attributes, 'vt', 'delay', 'maxsize', 'totalsent', 'totalrecv'))
local exists = vt_text and delay_text and maxsize_text

local function whole(text, otherwise)
  local digits = text and string.match(text, '^%s*([+-]?%d+)')
  return digits and tonumber(digits) or otherwise
end

-- A total after `by` more; one that holds no number begins anew.
local function added(text, by) return string.format('%.0f', whole(text, 0) + by) end
