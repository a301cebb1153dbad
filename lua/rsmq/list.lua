#!lua flags=no-writes
--[[
list: return the names of the queues.

KEYS
  queues:set
RETURNS  {'ok', name...}, in no order
COST     O(queues)
WRITES   nothing
]]
local queues = unpack(KEYS)

--@include shared/_arguments
keys_are(1)
arguments_are(0)

local reply = redis.call('SMEMBERS', queues)
table.insert(reply, 1, 'ok')
return reply
