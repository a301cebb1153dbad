#!lua flags=no-writes
--[[
dead: a page of dead messages, oldest first, starting after a message that may be gone.

KEYS
  dead:zset dead_messages:hash
ARGV
  score  first time of death, epoch ms
  id     at exactly that time, only greater ids
  upto   time of death of the last, epoch ms
  count  1-1000, about 256 KiB in all
RETURNS  {per message: dead id, died_at, its record in dead_messages}, perhaps fewer than there are; nothing at
         the end
COST     O(log n + count), and O(n) for messages with the same ms of death
WRITES   nothing
]]
local dead, dead_messages = unpack(KEYS)
local score, id, upto, count = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(4)
score, upto = whole('score', score, 0, 9007199254740991), whole('upto', upto, 0, 9007199254740991)
count = whole('count', count, 1, 1000)
local PAGE_BYTES = 262144

-- By bytes, as the sorted set does; Lua's own > goes by the server's locale.
local function follows(one, other)
  for i = 1, #one do
    local byte, by = string.byte(one, i), string.byte(other, i) or -1
    if byte ~= by then return byte > by end
  end
  return false
end

local page, offset, bytes = {}, 0, 0
while #page < 3 * count and bytes < PAGE_BYTES do
  local found = redis.call('ZRANGE', dead, string.format('%.0f', score), string.format('%.0f', upto), 'BYSCORE', 'LIMIT', offset, count, 'WITHSCORES')
  for i = 1, #found, 2 do
    if #page < 3 * count and bytes < PAGE_BYTES and (tonumber(found[i + 1]) > score or follows(found[i], id)) then
      page[#page + 1] = found[i]
      page[#page + 1] = string.format('%.0f', found[i + 1])
      page[#page + 1] = redis.call('HGET', dead_messages, found[i]) or ''
      bytes = bytes + #found[i] + #page[#page]
    end
  end
  if #found < 2 * count then break end
  offset = offset + count
end
return page
