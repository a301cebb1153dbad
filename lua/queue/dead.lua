#!lua flags=no-writes
--[[
dead: return a page of dead messages, newest first, of about 256 KiB at most; or a mid's latest dead message; or one by its id.

KEYS
  dead:zset dead_messages:hash last_dead:hash
ARGV
  mid     or a dead id, '' = all
  offset  of the page, from 0
  limit   1-1000
RETURNS  {per message: dead id, died_at, attempts, ncrashes, reason, content}; attempts -1: the stored value isn't
         a dead message, and is returned as content
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
-- Ids per read: they may be long if another program wrote them.
local STEP = 25

local function row_of(id, stored)
  local died_at = redis.call('ZSCORE', dead, id) or 0
  local head, attempts, ncrashes, length = string.match(stored, '^((%d*)\31(%d*)\31[^\31]*\31(%d+)\31)')
  if not head or #length > 7 then return {id, died_at, '-1', '0', '', stored} end
  local reason = string.sub(stored, #head + 1, #head + length)
  return {id, died_at, attempts, ncrashes, reason, string.sub(stored, #head + length + 1)}
end

local page, looked_at, bytes = {}, 0, 0
local function look_at(id)
  local stored = redis.call('HGET', dead_messages, id) or ''
  for _, item in ipairs(row_of(id, stored)) do page[#page + 1] = item end
  looked_at, bytes = looked_at + 1, bytes + #id + #stored
end

if mid ~= '' then
  local id = redis.call('HEXISTS', dead_messages, mid) == 1 and mid or redis.call('HGET', last_dead, mid)
  if id then look_at(id) end
  return page
end
repeat
  local first = offset + looked_at
  local ids = redis.call('ZRANGE', dead, first, first + math.min(STEP, limit - looked_at) - 1, 'REV')
  for _, id in ipairs(ids) do
    if bytes < PAGE_BYTES then look_at(id) end
  end
until #ids == 0 or looked_at >= limit or bytes >= PAGE_BYTES
return page
