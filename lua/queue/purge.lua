#!lua flags=allow-oom
--[[
purge: delete dead messages permanently.

KEYS
  dead:zset dead_messages:hash last_dead:hash
ARGV
  one per message: dead id, mid#generation, 1-1000 of them
RETURNS  {per message: 'purged' | 'nil'}
COST     O(messages)
WRITES   nothing for a message that isn't dead
]]
local dead, dead_messages, last_dead = unpack(KEYS)

--@include shared/_arguments
keys_are(3)
arguments_are(0, 1, 1000)
probe('HLEN', dead_messages, last_dead)

local words = {}
for i, id in ipairs(ARGV) do
  local mid = string.match(id, '^(.*)#[^#]*$')
  local known = redis.call('ZREM', dead, id) + redis.call('HDEL', dead_messages, id)
  words[i] = known > 0 and 'purged' or 'nil'
  if mid and redis.call('HGET', last_dead, mid) == id then redis.call('HDEL', last_dead, mid) end
end
return words
