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
WRITES   group, where it is there
]]
local group = unpack(KEYS)
local paused, out_of_range = unpack(ARGV)

if not ({['1'] = 1, ['0'] = 1, [''] = 1})[paused]
  or not ({earliest = 1, latest = 1, error = 1, [''] = 1})[out_of_range] then
  return redis.error_reply('ERR steer takes 1 or 0, and earliest, latest or error')
end
if redis.call('EXISTS', group) == 0 then return {'missing'} end
if paused ~= '' then redis.call('HSET', group, 'paused', paused) end
if out_of_range ~= '' then redis.call('HSET', group, 'out_of_range', out_of_range) end
return {'ok'}
