#!lua flags=allow-oom
--[[
retention: set or return how many dead messages a queue keeps, how long, and whether each death adds a message.

KEYS
  meta:hash
ARGV
  most     dead messages to keep, 1-1000000000, or '' to ask
  age_ms   how long to keep each, 1-3153600000000, or '' to ask
  on_dead  '1' = each death adds a message, by which a worker calls its job's on_dead, '' = unchanged
RETURNS  {most in force, age_ms in force, how many were deleted for either so far}
COST     O(1)
WRITES   meta, unless asked; later deaths and upkeep delete messages beyond the limits
]]
local meta = unpack(KEYS)
local most, age_ms, on_dead = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(3)
--@include _stored
most, age_ms = whole_or_none('most', most, 1, 1000000000), whole_or_none('age_ms', age_ms, 1, MAX_MS)
one_of('on_dead', on_dead, '', '1')

if on_dead == '1' then redis.call('HSET', meta, 'on_dead', '1') end
if most then redis.call('HSET', meta, 'dead_max', string.format('%.0f', most)) end
if age_ms then redis.call('HSET', meta, 'dead_age_ms', string.format('%.0f', age_ms)) end
return redis.call('HMGET', meta, 'dead_max', 'dead_age_ms', 'dead_evicted')
