#!lua flags=allow-oom
--[[
unsubscribe: delete a group; its readers can no longer commit the messages that they hold.

KEYS
  groups:set group:hash held:zset leases:zset batches:hash
ARGV
  name  of the group, as in group's name
RETURNS  {1 when there was one, else 0}
COST     O(1)
WRITES   all keys
]]
local groups, group, held, leases, batches = unpack(KEYS)
local name = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(1)
local there = redis.call('EXISTS', group)
redis.call('SREM', groups, name)
redis.call('UNLINK', group)
redis.call('UNLINK', held)
redis.call('UNLINK', leases)
redis.call('UNLINK', batches)
return {there}
