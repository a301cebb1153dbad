#!lua flags=allow-oom
--[[
seek: move a group. What its readers hold they can't commit any more.

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

--@include _state
--@include _entries
--@include _find
--@include _place

if redis.call('EXISTS', group) == 0 then return {'missing'} end
local position = position_of(start, value)
if position == nil then
  return redis.error_reply('ERR start must be earliest, latest, or index or time with a number')
end
if not position then return {'out-of-range', state.first, state.last} end
redis.call('HSET', group, 'cursor', position)
redis.call('UNLINK', held)
redis.call('UNLINK', leases)
redis.call('UNLINK', batches)
return {'ok', position}
