#!lua
--[[
create: a queue with its settings, listed; one that is there already is listed again if it wasn't.

KEYS
  messages:zset attributes:hash queues:set
ARGV
  now       epoch microseconds, or '' for the server's clock
  name      of the queue
  vt        seconds
  delay     seconds
  maxsize   bytes, -1 = any
RETURNS  {'ok'} | {'exists'}
COST     O(1)
WRITES   attributes and queues; messages that a deleted queue left behind belong to the new one
]]
local messages, attributes, queues = unpack(KEYS)
local now, name, vt, delay, maxsize = unpack(ARGV)

--@include _clock

-- A key of another type refuses here, before anything is written.
redis.call('ZCARD', messages)
redis.call('SISMEMBER', queues, name)

local added = redis.call('HSETNX', attributes, 'vt', vt)
if added == 1 then
  local at = string.format('%.0f', math.floor(now_ms / 1000))
  redis.call('HSETNX', attributes, 'delay', delay)
  redis.call('HSETNX', attributes, 'maxsize', maxsize)
  redis.call('HSETNX', attributes, 'created', at)
  redis.call('HSETNX', attributes, 'modified', at)
end
redis.call('SADD', queues, name)
return {added == 1 and 'ok' or 'exists'}
