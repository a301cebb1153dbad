#!lua flags=allow-oom
--[[
close: reject all later calls of a caller that is gone, and return the messages that its last call handed out.

KEYS
  tokens:hash last_call:string
ARGV
  caller  1-64 printable ASCII characters, the id of the connection that is gone
RETURNS  {per message still held: mid, token}
COST     O(messages of that call)
WRITES   last_call; closing twice answers the same
]]
local tokens, last_call = unpack(KEYS)
local caller = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(1)
--@include shared/_caller
--@include shared/_call
--@include _recorded
local call = open_call(last_call, checked_number(caller, '0'))

if not call.last then
  redis.call('SET', last_call, 'x0\30\30', 'PX', 600000)
  return {}
end
if not call.closed then redis.call('SET', last_call, 'x' .. call.record, 'PX', 600000) end
local held, items = {}, kept_handed(string.sub(call.record, call.text_at))
for i = 5, #items do
  local mid, token = string.match(items[i], '^[^\29]*'), string.format('%s.%.0f.%d', caller, call.last, i - 5)
  if redis.call('HGET', tokens, mid) == token then
    held[#held + 1], held[#held + 2] = mid, token
  end
end
return held
