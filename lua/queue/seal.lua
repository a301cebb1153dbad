#!lua flags=allow-oom
--[[
seal: make the queue reject new messages, except for its live mids and keys. Other messages go to the partitions of a
newer epoch. Sealed queues stay sealed. The keys of its delayed messages are listed, 1,000 messages in each call. Repeat
the call until none are left.

KEYS
  meta:hash options:hash done:set requeue:hash due:zset rests:zset seal_due:zset
ARGV
  epoch  the epoch of the partitions that replace the queue, 1-1000000
RETURNS  {'sealed', the epoch of the first seal, number of delayed messages whose keys aren't listed yet}
COST     O(delayed messages) in the server's C code at the first call; else O(log n) per listed message
WRITES   nothing for a sealed queue whose keys are listed
]]
local meta, options, done, requeue, due, rests, seal_due = unpack(KEYS)
local epoch = unpack(ARGV)

--@include shared/_arguments
keys_are(7)
arguments_are(1)
whole('epoch', epoch, 1, 1000000)
local known, longest, has_keys = unpack(redis.call('HMGET', meta, 'sealed', 'max_content', 'turn'))
local begins = not known or longest ~= 'sealed'
redis.call('HLEN', options)
redis.call('SCARD', done)
redis.call('HLEN', requeue)
redis.call('ZCARD', due)
redis.call('ZCARD', rests)
redis.call('ZCARD', seal_due)
if begins then redis.call('HSET', meta, 'sealed', known or epoch, 'max_content', 'sealed') end
if begins and has_keys then
  -- Messages become due, and others are delayed, until all are listed. So they are listed from a copy.
  -- ZUNIONSTORE would copy both, but a user who may send it could also dequeue.
  redis.call('ZRANGESTORE', seal_due, due, 0, -1)
  for _, mid in ipairs(redis.call('HKEYS', requeue)) do redis.call('ZADD', seal_due, redis.call('ZSCORE', seal_due, mid) or 0, mid) end
  if redis.call('ZCARD', seal_due) > 0 then redis.call('ZADD', rests, '1000000000000000', '\31') end
end

-- As keep_key of _lines
local function keep_key(key, at)
  redis.call('ZADD', rests, 'GT', string.format('%.0f', 1e15 + (at or 0)), (at and '\31' or '\31\31') .. key)
end

local some = redis.call('ZRANGE', seal_due, 0, 999, 'WITHSCORES')
for i = 1, #some, 2 do
  local mid, at = some[i], tonumber(some[i + 1])
  local key = string.match(redis.call('HGET', options, mid) or '', '^%d*,[@<>]?%d*,o?%-?%d*,(.+)$')
  local is_over = redis.call('SISMEMBER', done, mid) == 1
  if key and at > 0 and not is_over then keep_key(key, at) end
  local newer = redis.call('HGET', requeue, mid) or ''
  local length, first = string.match(newer, '^%d*,%d*,%d*,o?,(%d%d?%d?),()')
  local newer_key = length and string.sub(newer, first, first + length - 1)
  if newer_key and is_over and at > 0 then keep_key(newer_key, at) elseif newer_key and newer_key ~= key then keep_key(newer_key) end
end
local left = redis.call('ZCARD', seal_due)
if some[1] then
  redis.call('ZREMRANGEBYRANK', seal_due, 0, #some / 2 - 1)
  left = left - #some / 2
  if left == 0 then redis.call('ZREM', rests, '\31') end
end
return {'sealed', known or epoch, left}
