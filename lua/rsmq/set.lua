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
WRITES   attributes; nothing if the queue doesn't exist
]]
local messages, attributes = unpack(KEYS)
local now, vt, delay, maxsize = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(4)
whole_or_none('vt', vt, 0, 9999999)
whole_or_none('delay', delay, 0, 9999999)
if maxsize ~= '-1' then whole_or_none('maxsize', maxsize, 1024, 65536) end
whole_or_none('now', now, 0, 9007199254740991)
--@include _clock
read_clock(now)
--@include _settings
--@include _described

if not exists then return {'not_found'} end
probe('ZCARD', messages)

redis.call('HSET', attributes, 'modified', string.format('%.0f', math.floor(now_ms / 1000)))
if vt ~= '' then redis.call('HSET', attributes, 'vt', vt) end
if delay ~= '' then redis.call('HSET', attributes, 'delay', delay) end
if maxsize ~= '' then redis.call('HSET', attributes, 'maxsize', maxsize) end
return described()
