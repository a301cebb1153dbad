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

-- Compare bytes, as the sorted set does; Lua's > depends on the server's locale.
local function follows(dead_id, other)
  for i = 1, #dead_id do
    local byte, by = string.byte(dead_id, i), string.byte(other, i) or -1
    if byte ~= by then return byte > by end
  end
  return false
end

local page, offset, bytes = {}, 0, 0
while #page < 3 * count and bytes < PAGE_BYTES do
  local scored = redis.call('ZRANGE', dead, string.format('%.0f', score), string.format('%.0f', upto), 'BYSCORE', 'LIMIT', offset, count, 'WITHSCORES')
  for i = 1, #scored, 2 do
    if #page < 3 * count and bytes < PAGE_BYTES and (tonumber(scored[i + 1]) > score or follows(scored[i], id)) then
      page[#page + 1] = scored[i]
      page[#page + 1] = string.format('%.0f', scored[i + 1])
      page[#page + 1] = redis.call('HGET', dead_messages, scored[i]) or ''
      bytes = bytes + #scored[i] + #page[#page]
    end
  end
  if #scored < 2 * count then break end
  offset = offset + count
end
return page
