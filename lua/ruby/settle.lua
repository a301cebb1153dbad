#!lua flags=allow-oom
--[[
settle: delete a claim whose jobs are in their queue. A repeated call changes nothing more.

KEYS
  claims:zset taken:list
ARGV
  claim  its id
RETURNS  how many jobs it held
COST     O(jobs)
WRITES   claims and taken
]]
local claims, taken = unpack(KEYS)
local claim = unpack(ARGV)

--@include shared/_arguments
--@include _inputs
keys_are(2)
arguments_are(1)
claim_id(claim)
probe('ZCARD', claims)

local held = redis.call('LLEN', taken)
redis.call('DEL', taken)
redis.call('ZREM', claims, claim)
return held
