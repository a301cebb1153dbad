#!lua
--[[
configure: set after how many deliveries a message that isn't acknowledged is dead.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
ARGV
  then max_deliveries: 0 = never
RETURNS  {'max_deliveries', n}
COST     O(1)
WRITES   meta
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS)

--@include shared/_arguments
keys_are(8)
--@include _options

local most = whole_word(ARGV[1])
if not most or ARGV[2] then
  return redis.error_reply('ERR usage: configure takes max_deliveries, a whole number of 0 or more')
end
redis.call('HSET', meta, 'max_deliveries', string.format('%.0f', most))
return {'max_deliveries', most}
