#!lua flags=no-writes
--[[
look: return the stored fields of a flow.

KEYS
  meta:hash steps:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
RETURNS  {'gone'} if the flow is gone or has more fields than a flow can have; else {epoch ms, fields and values of meta,
         of steps, of todo}
COST     O(steps)
WRITES   nothing
]]
local meta, steps, todo = unpack(KEYS)
local now = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(1)
whole_or_none('now', now, 0, 253402300799999)
--@include shared/_clock

local MAX_FIELDS = 30000
local now_ms = time_ms(now)
if redis.call('HLEN', meta) == 0 then return {'gone'} end
for _, key in ipairs(KEYS) do
  if redis.call('HLEN', key) > MAX_FIELDS then return {'gone'} end
end
return {now_ms, redis.call('HGETALL', meta), redis.call('HGETALL', steps), redis.call('HGETALL', todo)}
