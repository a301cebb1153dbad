#!lua flags=no-writes
--[[
describe: return a queue's attributes and counts.

KEYS
  messages:zset attributes:hash
ARGV
  now   epoch microseconds, or '' for the server's clock
RETURNS  {'ok', vt, delay, maxsize, totalrecv, totalsent, created, modified, messages, hidden,
         hidden as Node counts them}: the first seven as stored, '' where missing; {'not_found'}
COST     O(log messages)
WRITES   nothing
]]
local messages, attributes = unpack(KEYS)
local now = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(1)
whole_or_none('now', now, 0, 9007199254740991)
--@include _clock
read_clock(now)
--@include _described

if redis.call('HEXISTS', attributes, 'vt') == 0 then return {'not_found'} end
return described()
