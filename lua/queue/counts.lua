#!lua flags=no-writes
--[[
counts: how many messages are where.

KEYS
  messages:hash locks:hash requeue:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set dead:zset quarantine:hash meta:hash
RETURNS  {messages, ready, delayed, deduped, locked, done, requeued, dead, circle, paused, quarantined}: locked holds
         expired locks not yet recovered, done what awaits collection, circle all that rotates
COST     O(1)
WRITES   nothing
]]
local messages, locks, requeue, ready, due, circle, done, left_ready, left_circle, dead, quarantine,
  meta = unpack(KEYS)

--@include shared/_arguments
keys_are(12)
--@include _stored
--@include _counters

local deduped = count_of(meta, 'deduped')
return {
  redis.call('HLEN', messages),
  redis.call('LLEN', ready) - redis.call('SCARD', left_ready),
  redis.call('ZCARD', due) - deduped,
  deduped,
  redis.call('HLEN', locks),
  redis.call('SCARD', done) - deduped,
  redis.call('HLEN', requeue),
  redis.call('ZCARD', dead),
  redis.call('LLEN', circle) - redis.call('SCARD', left_circle),
  redis.call('HGET', meta, 'paused') == '1' and 1 or 0,
  redis.call('HLEN', quarantine),
}
