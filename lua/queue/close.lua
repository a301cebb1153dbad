#!lua flags=allow-oom
--[[
close: refuse every later call of a caller that is gone, and tell what its last one handed out.

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
local number = '0'

--@include shared/_arguments
keys_are(2)
arguments_are(1)
--@include _call
--@include _recorded

if not recorded_number then
  redis.call('SET', last_call, 'x0\30\30', 'PX', 600000)
  return {}
end
number = string.match(recorded_number, '%d+')
if string.sub(recorded, 1, 1) ~= 'x' then redis.call('SET', last_call, 'x' .. recorded, 'PX', 600000) end
local held, items = {}, recorded_part('^[^\30]*\30[^\30]*\30(.*)$')
for i = 5, #items do
  local mid, token = string.match(items[i], '^[^\29]*'), caller .. '.' .. number .. '.' .. (i - 5)
  if redis.call('HGET', tokens, mid) == token then
    held[#held + 1], held[#held + 2] = mid, token
  end
end
return held
