#!lua flags=allow-oom
--[[
checkpoint: keep a value for the next attempt, or read an earlier attempt's value.

KEYS
  tokens:hash progress:hash meta:hash
ARGV
  mid    message id
  token  of the attempt
  value  JSON or its seal, at most 32 KiB, without 0x1e; '' = only read
RETURNS  {'ok', the current value, '' for none} | {'stale'}
COST     O(1)
WRITES   nothing for a stale attempt, or to read
]]
local tokens, progress, meta = unpack(KEYS)
local mid, token, value = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
if #value > 32768 or string.find(value, '\30', 1, true) then refuse('value', '32 KiB at most, without 0x1e') end

-- Between 0x1e in the message's field, so that it is deleted with the message's other data. The traceback of
-- the latest failed attempt follows.
local kept = redis.call('HGET', progress, mid) or ''
if redis.call('HGET', tokens, mid) ~= token then return {'stale'} end
local report, former, traceback = string.match(kept, '^([^\30]*)\30?([^\30]*)(.*)$')
if value == '' then return {'ok', former} end
-- Before that, since it raises where the key has another type.
redis.call('HDEL', meta, 'plain_until')
redis.call('HSET', progress, mid, report .. '\30' .. value .. traceback)
return {'ok', value}
