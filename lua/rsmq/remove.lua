#!lua flags=allow-oom
--[[
remove: remove a queue with all its messages, or the leftovers of a queue.

KEYS
  messages:zset attributes:hash queues:set
ARGV
  name   of the queue
RETURNS  {'ok'} | {'not_found'}
COST     O(messages), freed in the background
WRITES   all keys
]]
local messages, attributes, queues = unpack(KEYS)
local name = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(1)
probe('SCARD', queues)

local gone = redis.call('UNLINK', messages) + redis.call('UNLINK', attributes)
redis.call('SREM', queues, name)
return {gone > 0 and 'ok' or 'not_found'}
