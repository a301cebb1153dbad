#!lua
--[[
create: create a queue with its settings, and list it. An existing queue that isn't listed is listed again.

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
WRITES   attributes and queues; leftover messages of a deleted queue belong to the new queue
]]
local messages, attributes, queues = unpack(KEYS)
local now, name, vt, delay, maxsize = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(5)
if #name > 160 or not string.find(name, '^[%w_-]+$') or name == 'QUEUES' then
  refuse('name', '1 to 160 letters, digits, _ and -, and not QUEUES')
end
whole('vt', vt, 0, 9999999)
whole('delay', delay, 0, 9999999)
if maxsize ~= '-1' then whole('maxsize', maxsize, 1024, 65536) end
whole_or_none('now', now, 0, 9007199254740991)
--@include _clock
read_clock(now)
probe('ZCARD', messages)
probe('HLEN', attributes)
probe('SCARD', queues)

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
