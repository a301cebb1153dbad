#!lua flags=allow-oom
--[[
purge: forget dead messages for good.

KEYS
  dead:zset dead_messages:hash last_dead:hash
ARGV
  one per message: dead id, mid#generation
RETURNS  {per message: 'purged' | 'nil'}
COST     O(messages)
WRITES   nothing for one not among the dead
]]
local dead, dead_messages, last_dead = unpack(KEYS)

local words = {}
for i, id in ipairs(ARGV) do
  local mid = string.match(id, '^(.*)#[^#]*$')
  words[i] = redis.call('ZREM', dead, id) == 1 and 'purged' or 'nil'
  redis.call('HDEL', dead_messages, id)
  if mid and redis.call('HGET', last_dead, mid) == id then redis.call('HDEL', last_dead, mid) end
end
return words
