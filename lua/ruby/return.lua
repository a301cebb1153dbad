#!lua flags=allow-oom
--[[
return: give the jobs of a claim back to their list, the oldest first in line again. Jobs marked as enqueued
don't go back.

KEYS
  source:list claims:zset taken:list
ARGV
  claim  its id
  side   where the oldest job stands: RIGHT (Sidekiq) or LEFT (Resque)
RETURNS  how many jobs went back
COST     O(jobs)
WRITES   taken and claims, and the jobs moved into source
]]
local source, claims, taken = unpack(KEYS)
local claim, side = unpack(ARGV)

--@include shared/_arguments
--@include _inputs
keys_are(3)
arguments_are(2)
claim_id(claim)
one_of('side', side, 'LEFT', 'RIGHT')
probe('LLEN', source, taken)
probe('ZCARD', claims)

redis.call('LREM', taken, 0, claim)
local returned = 0
while redis.call('LMOVE', taken, source, 'RIGHT', side) do returned = returned + 1 end
redis.call('ZREM', claims, claim)
return returned
