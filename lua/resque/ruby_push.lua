#!lua
--[[
ruby_push: add jobs to a Ruby list, once, however often the call is repeated within ten minutes.

KEYS
  target:list pushed:string
ARGV
  side  where the newest job goes: LEFT (Sidekiq) or RIGHT (Resque)
  then one per job, oldest first: its bytes
RETURNS  1 if they were added, 0 if an earlier call had added them
COST     O(jobs)
WRITES   target and pushed
]]
local target, pushed = unpack(KEYS)
local side = unpack(ARGV, 1, 1)

if redis.call('EXISTS', pushed) == 1 then return 0 end
local first = 2
while first <= #ARGV do
  local last = math.min(#ARGV, first + 999)
  if side == 'LEFT' then
    redis.call('LPUSH', target, unpack(ARGV, first, last))
  else
    redis.call('RPUSH', target, unpack(ARGV, first, last))
  end
  first = last + 1
end
redis.call('SET', pushed, '1', 'PX', 600000)
return 1
