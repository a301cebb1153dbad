#!lua flags=allow-oom
--[[
ruby_rescue: take over a claim whose holder hasn't settled it within its lease.

KEYS
  claims:zset
ARGV
  now       epoch ms, or '' for the server's clock
  lease_ms  how long the claim is the caller's now
RETURNS  the claim, or nil
COST     O(log claims)
WRITES   claims
]]
local claims = unpack(KEYS)
local now, lease_ms = unpack(ARGV)

if now == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local claim = redis.call('ZRANGEBYSCORE', claims, '-inf', string.format('%.0f', now), 'LIMIT', 0, 1)[1]
if claim then redis.call('ZADD', claims, string.format('%.0f', now + lease_ms), claim) end
return claim
