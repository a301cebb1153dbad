#!lua flags=allow-oom
--[[
clear: forget every message of a queue; its last id stays, so that ids go on from there. With QUEUE forget that too.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
ARGV
  [QUEUE]  the queue as well: then it doesn't exist
RETURNS  how many messages are gone; nil: there is no such queue
COST     O(messages), freed in the background
WRITES   undelivered and tickets and delivered and messages and unacked and tokens and dead and meta
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS)

if ARGV[2] or (ARGV[1] and string.upper(ARGV[1]) ~= 'QUEUE') then
  return redis.error_reply('ERR usage: clear takes QUEUE or nothing')
end
if redis.call('EXISTS', meta) == 0 then return false end
local count = redis.call('HLEN', messages)
redis.call('UNLINK', undelivered)
redis.call('UNLINK', tickets)
redis.call('UNLINK', delivered)
redis.call('UNLINK', messages)
redis.call('UNLINK', unacked)
redis.call('UNLINK', tokens)
redis.call('UNLINK', dead)
if ARGV[1] then redis.call('UNLINK', meta) else redis.call('HDEL', meta, 'skew') end
return count
