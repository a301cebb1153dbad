#!lua flags=allow-oom
--[[
leave: give a slot back.

KEYS
  holders:zset
ARGV
  token  of the holder
RETURNS  {'ok', 1, or 0 if the holder had no slot}
COST     O(log holders)
WRITES   holders
]]
local holders = unpack(KEYS)
local token = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(1)
return {'ok', redis.call('ZREM', holders, token)}
