#!lua flags=allow-oom
--[[
level: how much the event stream records.

KEYS
  meta:hash
ARGV
  wanted  'off' | 'attempts' | 'all', or '' to ask
RETURNS  {level in force}
COST     O(1)
WRITES   meta, unless asked: the level, and since when it is 'all'
]]
local meta = unpack(KEYS)
local wanted = unpack(ARGV)

if wanted ~= '' then redis.call('HSET', meta, 'events', wanted) end
if wanted == 'all' then
  local time = redis.call('TIME')
  redis.call('HSETNX', meta, 'all_since', string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + 1))
elseif wanted ~= '' then
  redis.call('HDEL', meta, 'all_since')
end
return {redis.call('HGET', meta, 'events') or 'attempts'}
