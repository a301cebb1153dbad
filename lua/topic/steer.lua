#!lua flags=allow-oom
--[[
steer: pause or resume a group, or change what it does out of range.

KEYS
  group:hash
ARGV
  paused        '1' | '0' | '' as it is
  out_of_range  'earliest' | 'latest' | 'error' | '' as it is
RETURNS  {'ok' | 'missing'}
COST     O(1)
WRITES   group, if it exists
]]
local group = unpack(KEYS)
local paused, out_of_range = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(2)
one_of('paused', paused, '', '0', '1')
one_of('out_of_range', out_of_range, '', 'earliest', 'latest', 'error')
if redis.call('EXISTS', group) == 0 then return {'missing'} end
if paused ~= '' then redis.call('HSET', group, 'paused', paused) end
if out_of_range ~= '' then redis.call('HSET', group, 'out_of_range', out_of_range) end
return {'ok'}
