#!lua flags=allow-oom
--[[
seek: move a group. Its readers can no longer commit the messages that they hold.

KEYS
  log:stream base:stream meta:hash group:hash held:zset leases:zset batches:hash
ARGV
  now    epoch ms, or '' for the server's clock
  start  'earliest' | 'latest' | 'index' | 'time'
  value  the next index to hand out, or epoch ms; else ''
RETURNS  {'ok', last index before the place}; {'missing'}; {'out-of-range', first, last}
COST     O(log messages)
WRITES   group and held and leases and batches; nothing when refused
]]
local log, base, meta, group, held, leases, batches = unpack(KEYS)
local now, start, value = unpack(ARGV)

--@include shared/_arguments
keys_are(7)
arguments_are(3)
whole_or_none('now', now, 0, 253402300799999)
one_of('start', start, 'earliest', 'latest', 'index', 'time')
if start == 'index' or start == 'time' then whole('value', value, -9007199254740991, 9007199254740991) end
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _find
--@include _place

if redis.call('EXISTS', group) == 0 then return {'missing'} end
local position = position_of(start, value)
if not position then return {'out-of-range', state.first, state.last} end
redis.call('HSET', group, 'cursor', text(position))
redis.call('UNLINK', held)
redis.call('UNLINK', leases)
redis.call('UNLINK', batches)
return {'ok', position}
