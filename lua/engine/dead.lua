#!lua flags=no-writes
--[[
dead: one page of the dead, newest first, of about 256 KiB at most; or the newest of one mid.

KEYS
  dead:zset dead_messages:hash last_dead:hash
ARGV
  mid     '' = all
  offset  of the page, from 0
  limit   1-1000
RETURNS  {per message: dead id, died_at, attempts, ncrashes, reason, content}; attempts -1: what is stored isn't
         a dead message, and comes as content
COST     O(log n + offset + limit)
WRITES   nothing
]]
local dead, dead_messages, last_dead = unpack(KEYS)
local mid, offset, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
offset, limit = whole('offset', offset, 0, 9007199254740991), whole('limit', limit, 1, 1000)
local PAGE_BYTES = 262144

local function row_of(id, stored)
  local died_at = redis.call('ZSCORE', dead, id) or 0
  local head, attempts, ncrashes, length = string.match(stored, '^((%d*)\31(%d*)\31[^\31]*\31(%d+)\31)')
  if not head or #length > 7 then return {id, died_at, '-1', '0', '', stored} end
  local reason = string.sub(stored, #head + 1, #head + length)
  return {id, died_at, attempts, ncrashes, reason, string.sub(stored, #head + length + 1)}
end

local ids
if mid == '' then
  ids = redis.call('ZRANGE', dead, offset, offset + limit - 1, 'REV')
else
  ids = {redis.call('HGET', last_dead, mid) or nil}
end
local page, bytes = {}, 0
for _, id in ipairs(ids) do
  if bytes >= PAGE_BYTES then break end
  local stored = redis.call('HGET', dead_messages, id) or ''
  for _, item in ipairs(row_of(id, stored)) do page[#page + 1] = item end
  bytes = bytes + #id + #stored
end
return page
