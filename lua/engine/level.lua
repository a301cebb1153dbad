#!lua flags=allow-oom
--[[
level: how much the event stream records.

KEYS
  meta:hash
ARGV
  wanted  'off' | 'attempts' | 'all', or '' to ask
RETURNS  {level in force}
COST     O(1)
WRITES   meta, unless asked
]]
local meta = unpack(KEYS)
local wanted = unpack(ARGV)

if wanted ~= '' then redis.call('HSET', meta, 'events', wanted) end
return {redis.call('HGET', meta, 'events') or 'attempts'}
