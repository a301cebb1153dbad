#!lua flags=allow-oom
--[[
extend: renew the lease of messages that a reader still holds, or give them back.

KEYS
  meta:hash held:zset leases:zset
ARGV
  now       epoch ms, or '' for the server's clock
  token     what they are held by
  lease_ms  from now on; 0 = hand them out again at once
RETURNS  {'ok' | 'stale'}
COST     O(log of what is held)
WRITES   nothing when stale
]]
local meta, held, leases = unpack(KEYS)
local now, token, lease_ms = unpack(ARGV)
lease_ms = tonumber(lease_ms)

--@include _state

if not lease_ms or lease_ms < 0 then return redis.error_reply('ERR lease_ms must be 0 or more') end
if not redis.call('ZSCORE', held, token) then return {'stale'} end
redis.call('ZADD', leases, lease_ms > 0 and now_ms + lease_ms or 0, token)
return {'ok'}
