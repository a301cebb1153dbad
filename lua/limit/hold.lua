#!lua flags=allow-oom
--[[
hold: allow no starts for a time. A longer hold isn't shortened.

KEYS
  state:hash
ARGV
  now  epoch ms, or '' for the server's clock
  hold_ms  duration; 0 ends a hold
RETURNS  {'ok', ms until the end of the hold}
COST     O(1)
WRITES   state
]]
local state = unpack(KEYS)
local now, hold_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(2)
whole_or_none('now', now, 0, 253402300799999)
hold_ms = whole('hold_ms', hold_ms, 0, 2592000000)
--@include shared/_clock
--@include _stored
--@include _held
--@include _keep_state

local now_ms = time_ms(now)
local held = held_until(redis.call('HGET', state, 'hold'), redis.call('HGET', state, 'hold_ms'), now_ms)
-- Turns that were given during the hold come after its end.
if hold_ms == 0 then
  redis.call('HDEL', state, 'hold', 'hold_ms', 'advice')
  return {'ok', 0}
end
held = math.max(held, now_ms + hold_ms)
redis.call('HSET', state, 'hold', text(held), 'hold_ms', text(held - now_ms))
keep_state(held - now_ms + 60000)
return {'ok', math.ceil(held - now_ms)}
