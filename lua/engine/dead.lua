#!lua flags=no-writes
--[[
dead: one page of the dead, newest first, or the newest of one mid.

KEYS
  dead:zset dead_messages:hash last_dead:hash
ARGV
  mid     '' = all
  offset  of the page, from 0
  limit   1-1000
RETURNS  {per message: dead id, died_at, attempts, ncrashes, reason, content}
COST     O(log n + offset + limit)
WRITES   nothing
]]
local dead, dead_messages, last_dead = unpack(KEYS)
local mid, offset, limit = unpack(ARGV)

local ids
if mid == '' then
  ids = redis.call('ZRANGE', dead, offset, offset + limit - 1, 'REV')
else
  ids = {redis.call('HGET', last_dead, mid) or nil}
end
local page = {}
for _, id in ipairs(ids) do
  local stored = redis.call('HGET', dead_messages, id)
  local head, attempts, ncrashes, length = string.match(stored, '^(([^\31]*)\31([^\31]*)\31[^\31]*\31(%d+)\31)')
  local reason = string.sub(stored, #head + 1, #head + length)
  local row = {id, redis.call('ZSCORE', dead, id), attempts, ncrashes, reason, string.sub(stored, #head + length + 1)}
  for _, item in ipairs(row) do page[#page + 1] = item end
end
return page
