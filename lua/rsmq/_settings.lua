-- settings: the queue's, as any client may have written them: '15.5' and '30 s' are read as far as they are whole.
-- needs: attributes
local vt_text, delay_text, maxsize_text = unpack(redis.call('HMGET', attributes, 'vt', 'delay', 'maxsize'))
local exists = vt_text and delay_text and maxsize_text

local function whole(text, otherwise)
  return tonumber(string.match(text, '^%s*([+-]?%d+)')) or otherwise
end
