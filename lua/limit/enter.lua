#!lua
--[[
enter: acquire one slot. A token has one slot at most, however often its holder calls.

KEYS
  holders:zset state:hash settings:hash
ARGV
  now  epoch ms, or '' for the server's clock
  most  how many slots there are
  lease_ms  duration of the lease
  token  of the holder: 1 to 1,024 bytes
RETURNS  {'ok', most}; {'wait' or 'held', ms until a lease or the hold ends, most}
COST     O(leases that ended)
WRITES   nothing when all slots are taken and no clock stepped back
]]
local holders, state, settings = unpack(KEYS)
local now, most, lease_ms, token = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(4)
whole_or_none('now', now, 0, 253402300799999)
most = whole('most', most, 1, 1000000000)
lease_ms = whole('lease_ms', lease_ms, 1, 86400000)
if #token < 1 or #token > 1024 then refuse('token', '1 to 1,024 bytes') end
--@include shared/_clock
--@include _stored
--@include _in_force
--@include _held
--@include _keep_state

local now_ms = time_ms(now)
most = in_force(most)
local hold, hold_ms, longest = unpack(redis.call('HMGET', state, 'hold', 'hold_ms', 'lease_ms'))
local mine = redis.call('ZSCORE', holders, token)
--@include _leases
longest = shortened(longest, lease_ms, now_ms)

local held = held_until(hold, hold_ms, now_ms)
if not mine then
  if held > now_ms then return {'held', math.ceil(held - now_ms), most} end
  local after = '(' .. text(now_ms)
  if redis.call('ZCOUNT', holders, after, '+inf') >= most then
    local first = redis.call('ZRANGE', holders, after, '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
    return {'wait', math.ceil(tonumber(first[2]) - now_ms), most}
  end
end
redis.call('ZREMRANGEBYSCORE', holders, '-inf', text(now_ms))
redis.call('ZADD', holders, text(now_ms + lease_ms), token)
keep_holders(longest)
return {'ok', most}
