#!lua flags=allow-oom
--[[
unlist: take a name off the list of queues that can't be one; a queue's own keys stay as they are.

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
