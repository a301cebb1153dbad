#!lua
--[[
set: change a queue's settings.

KEYS
  messages:zset attributes:hash
ARGV
  now       epoch microseconds, or '' for the server's clock
  vt        seconds, '' = as it is
  delay     seconds, '' = as it is
  maxsize   bytes, -1 = any, '' = as it is
RETURNS  as describe
COST     O(log messages)
WRITES   attributes; nothing for a queue that isn't there
]]
local messages, attributes = unpack(KEYS)
local now, vt, delay, maxsize = unpack(ARGV)

--@include _clock
--@include _settings
--@include _described

if not exists then return {'not_found'} end
redis.call('ZCARD', messages)

redis.call('HSET', attributes, 'modified', string.format('%.0f', math.floor(now_ms / 1000)))
if vt ~= '' then redis.call('HSET', attributes, 'vt', vt) end
if delay ~= '' then redis.call('HSET', attributes, 'delay', delay) end
if maxsize ~= '' then redis.call('HSET', attributes, 'maxsize', maxsize) end
return described()
