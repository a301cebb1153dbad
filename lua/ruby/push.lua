#!lua
--[[
push: add jobs to a Ruby list, once, however often the call is repeated within ten minutes.

KEYS
  target:list pushed:string
ARGV
  side  where the newest job goes: LEFT (Sidekiq) or RIGHT (Resque)
  then one per job, oldest first: its bytes, 1-1000 jobs
RETURNS  1 if they were added, 0 if an earlier call had added them
COST     O(jobs)
WRITES   target and pushed
]]
local target, pushed = unpack(KEYS)
local side = unpack(ARGV, 1, 1)

--@include shared/_arguments
keys_are(2)
arguments_are(1, 1, 1000)
one_of('side', side, 'LEFT', 'RIGHT')
probe('LLEN', target)

if redis.call('GET', pushed) then return 0 end
if side == 'LEFT' then
  redis.call('LPUSH', target, unpack(ARGV, 2))
else
  redis.call('RPUSH', target, unpack(ARGV, 2))
end
redis.call('SET', pushed, '1', 'PX', 600000)
return 1
