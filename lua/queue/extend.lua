#!lua flags=allow-oom
--[[
extend: renew the locks that the caller still holds.

KEYS
  locks:hash tokens:hash options:hash meta:hash events:stream
ARGV
  now       epoch ms, or '' for the server's clock
  lease_ms  new length of each lock, unless the message has a longer lock_ms, 1-86400000
  then two per message: mid, token, 1-1000 messages
RETURNS  {per message: 'ok' | 'stale'}: another attempt took it over, or it was cancelled or finished
COST     O(messages)
WRITES   nothing for a stale message
]]
local locks, tokens, options, meta, events = unpack(KEYS)
local now, lease_ms = unpack(ARGV, 1, 2)

--@include shared/_arguments
keys_are(5)
arguments_are(2, 1, 1000, 2)
lease_ms = whole('lease_ms', lease_ms, 1, 86400000)
--@include _stored
--@include _counters
--@include shared/_clock
--@include _clock
read_clock(now)

probe('HLEN', locks)
local words, renewed, longest = {}, {}, max_lease
local any_options = redis.call('HLEN', options) > 0
for i = 3, #ARGV, 2 do
  local mid, held = ARGV[i], redis.call('HGET', tokens, ARGV[i]) == ARGV[i + 1]
  words[#words + 1] = held and 'ok' or 'stale'
  if held then
    local own = any_options and own_options(redis.call('HGET', options, mid)) or 0
    local length = math.max(own, lease_ms)
    longest = math.max(longest, length)
    renewed[#renewed + 1], renewed[#renewed + 2] = mid, string.format('%.0f', now_ms + length)
  end
end
if #renewed > 0 then
  tick()
  redis.call('HSET', locks, unpack(renewed))
  if longest > max_lease then redis.call('HSET', meta, 'max_lease', longest) end
end
return words
