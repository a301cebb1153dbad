#!lua flags=allow-oom
--[[
progress: store the progress of a running attempt.

KEYS
  tokens:hash progress:hash meta:hash
ARGV
  mid    message id
  token  of the attempt
  text   at most 8,192 bytes; data after 0x1f isn't shown as text
RETURNS  {'ok' | 'stale'}
COST     O(1)
WRITES   nothing for a stale attempt
]]
local tokens, progress, meta = unpack(KEYS)
local mid, token, text = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)

if redis.call('HGET', tokens, mid) ~= token then return {'stale'} end
-- The message's checkpoint and the traceback of its latest failed attempt follow 0x1e.
local rest = string.match(redis.call('HGET', progress, mid) or '', '\30.*$') or ''
text = string.gsub(string.sub(text, 1, 8192), '\30', ' ')
-- Before that, since it raises where the key has another type.
redis.call('HDEL', meta, 'plain_until')
redis.call('HSET', progress, mid, text .. rest)
return {'ok'}
