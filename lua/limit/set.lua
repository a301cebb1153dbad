#!lua
--[[
set: set a limit on the server, which overrides the limit in programs; or unset it.

KEYS
  settings:hash state:hash
ARGV
  most  starts of the rate, or slots; '' for the limit in programs
  span_ms  of the rate; '' for slots
RETURNS  {'ok', 1 if it was set before, else 0}
COST     O(1)
WRITES   settings and state
]]
local settings, state = unpack(KEYS)
local most, span_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(2)
most = whole_or_none('most', most, 1, 1000000000)
span_ms = whole_or_none('span_ms', span_ms, 1, 2592000000)
if span_ms and not most then refuse('most', 'given with span_ms') end
local before = redis.call('HLEN', settings) > 0 and 1 or 0
redis.call('HLEN', state)

redis.call('DEL', settings)
if most then
  redis.call('HSET', settings, 'most', string.format('%.0f', most))
  if span_ms then redis.call('HSET', settings, 'span_ms', string.format('%.0f', span_ms)) end
end
-- Turns were given by the old rate.
redis.call('HDEL', state, 'advice')
return {'ok', before}
