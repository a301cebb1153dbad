#!lua flags=allow-oom
--[[
extend: renew the lease of messages that a reader still holds, or give them back.

KEYS
  meta:hash held:zset leases:zset
ARGV
  now       epoch ms, or '' for the server's clock
  token     the reader's token
  lease_ms  starting now; 0 = other readers may have them immediately
RETURNS  {'ok' | 'stale'}
COST     O(log of held batches)
WRITES   nothing when stale
]]
local meta, held, leases = unpack(KEYS)
local now, token, lease_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
whole_or_none('now', now, 0, 253402300799999)
lease_ms = whole('lease_ms', lease_ms, 0, 86400000)
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)

if not redis.call('ZSCORE', held, token) then return {'stale'} end
redis.call('ZADD', leases, text(lease_ms > 0 and now_ms + lease_ms or 0), token)
return {'ok'}
