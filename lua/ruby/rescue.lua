#!lua flags=allow-oom
--[[
rescue: take over a claim whose holder hasn't settled it within its lease.

KEYS
  claims:zset
ARGV
  now       epoch ms, or '' for the server's clock
  lease_ms  how long the claim is the caller's now, 1-86400000
RETURNS  the claim, or nil
COST     O(log claims)
WRITES   claims; entries that can't be a claim's id are removed, up to 100 a call
]]
local claims = unpack(KEYS)
local now, lease_ms = unpack(ARGV)

--@include shared/_arguments
--@include shared/_clock
--@include _inputs
keys_are(1)
arguments_are(2)
local now_ms = time_ms(whole_or_none('now', now, 0, LATEST_MS))
lease_ms = whole('lease_ms', lease_ms, 1, MAX_LEASE_MS)

for _, claim in ipairs(redis.call('ZRANGEBYSCORE', claims, '-inf', string.format('%.0f', now_ms), 'LIMIT', 0, 100)) do
  if is_claim_id(claim) then
    redis.call('ZADD', claims, string.format('%.0f', now_ms + lease_ms), claim)
    return claim
  end
  redis.call('ZREM', claims, claim)
end
return nil
