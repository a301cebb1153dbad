#!lua
--[[
renew: renew slots. A slot whose lease ended is acquired again if one is free.

KEYS
  holders:zset state:hash settings:hash
ARGV
  now  epoch ms, or '' for the server's clock
  most  how many slots there are
  lease_ms  duration of the lease
  then the tokens of 1 to 500 holders
RETURNS  {'ok', per token: 1, or 0 if it doesn't hold a slot}
COST     O(tokens + leases that ended)
WRITES   holders and state
]]
local holders, state, settings = unpack(KEYS)
local now, most, lease_ms = unpack(ARGV, 1, 3)

--@include shared/_arguments
keys_are(3)
arguments_are(3, 1, 500)
whole_or_none('now', now, 0, 253402300799999)
most = whole('most', most, 1, 1000000000)
lease_ms = whole('lease_ms', lease_ms, 1, 86400000)
for i = 4, #ARGV do
  if #ARGV[i] < 1 or #ARGV[i] > 1024 then refuse('token', '1 to 1,024 bytes') end
end
--@include shared/_clock
--@include _stored
--@include _in_force
--@include _keep_state

local now_ms = time_ms(now)
most = in_force(most)
local longest = redis.call('HGET', state, 'lease_ms')
redis.call('ZCARD', holders)
--@include _leases
longest = shortened(longest, lease_ms, now_ms)
local ends_at, reply = text(now_ms + lease_ms), {'ok'}
for i = 4, #ARGV do
  local holds = redis.call('ZSCORE', holders, ARGV[i])
  if not holds then
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', text(now_ms))
    holds = redis.call('ZCARD', holders) < most
  end
  if holds then redis.call('ZADD', holders, ends_at, ARGV[i]) end
  reply[#reply + 1] = holds and 1 or 0
end
keep_holders(longest)
return reply
