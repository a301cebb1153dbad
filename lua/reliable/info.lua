#!lua flags=no-writes
--[[
info: return the number of messages in each place.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
ARGV
  [ALL]  more than the two counts
RETURNS  {'undelivered', n, 'delivered', n}; with ALL also 'dead', n, 'promised', n: how many of the undelivered are on
         their way to a waiting client, 'max_deliveries', n, 'last_id', id; error EMPTYKEY: there is no such queue
COST     O(1)
WRITES   nothing
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS)

--@include shared/_arguments
keys_are(8)
if ARGV[2] or (ARGV[1] and string.upper(ARGV[1]) ~= 'ALL') then
  return redis.error_reply('ERR usage: info takes ALL or nothing')
end
if redis.call('EXISTS', meta) == 0 then return redis.error_reply('EMPTYKEY nothing was ever pushed there') end
local waiting = redis.call('LLEN', undelivered)
local counts = {'undelivered', waiting, 'delivered', redis.call('ZCARD', delivered)}
if not ARGV[1] then return counts end

local facts = redis.call('HMGET', meta, 'max_deliveries', 'last_id')
for _, fact in ipairs({
  'dead', redis.call('ZCARD', dead), 'promised', math.max(0, waiting - redis.call('LLEN', tickets)),
  'max_deliveries', tonumber(facts[1]) or 0, 'last_id', facts[2] or '',
}) do
  counts[#counts + 1] = fact
end
return counts
