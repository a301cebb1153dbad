#!lua flags=allow-oom
--[[
promote: move one due job from Sidekiq's schedule or retry set to its list, unless another client was first.

KEYS
  waiting:zset target:list queues:set
ARGV
  member  the job as the set holds it
  job     the same job with its enqueue time
  queue   the list's name without its prefix, not empty
RETURNS  1 if it was moved, 0 if it was no longer there
COST     O(log set)
WRITES   waiting and target and queues
]]
local waiting, target, queues = unpack(KEYS)
local member, job, queue = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
if queue == '' then refuse('queue', 'a name') end
probe('ZCARD', waiting)
probe('LLEN', target)
probe('SCARD', queues)

if redis.call('ZREM', waiting, member) == 0 then return 0 end
redis.call('SADD', queues, queue)
redis.call('LPUSH', target, job)
return 1
