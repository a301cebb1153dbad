#!lua flags=allow-oom
--[[
unlist: remove an invalid name from the list of queues; the keys of a queue are not changed.

KEYS
  queues:set
ARGV
  name   any bytes
RETURNS  {'ok'} | {'not_found'}
COST     O(1)
WRITES   queues
]]
local queues = unpack(KEYS)
local name = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(1)
return {redis.call('SREM', queues, name) == 1 and 'ok' or 'not_found'}
