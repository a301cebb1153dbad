#!lua flags=allow-oom
--[[
set_event_level: set or return how much the event stream records, and about how many events it keeps.

KEYS
  meta:hash
ARGV
  wanted  'off' | 'attempts' | 'all', or '' to ask
  length  events to keep, 100-1000000000, or '' to ask
RETURNS  {level in force, length in force}
COST     O(1)
WRITES   meta, unless asked: the level, when it became 'all', the length
]]
local meta = unpack(KEYS)
local wanted, length = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(2)
one_of('wanted', wanted, '', 'off', 'attempts', 'all')
whole_or_none('length', length, 100, 1000000000)

if wanted ~= '' then redis.call('HSET', meta, 'events', wanted) end
if wanted == 'all' then
  local time = redis.call('TIME')
  redis.call('HSETNX', meta, 'all_since', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + 1))
elseif wanted ~= '' then
  redis.call('HDEL', meta, 'all_since')
end
if length ~= '' then redis.call('HSET', meta, 'maxlen', length) end
local level, maxlen = unpack(redis.call('HMGET', meta, 'events', 'maxlen'))
return {level or 'attempts', maxlen or '100000'}
