#!lua flags=no-writes
--[[
dead: a page of the dead, oldest first, from one on that may be gone by now.

KEYS
  dead:zset dead_messages:hash
ARGV
  score  time of death from which on, epoch ms
  id     of those with exactly that time only greater ids
  upto   time of death of the last, epoch ms
  count  1-1000
RETURNS  {per message: dead id, died_at, what dead_messages holds of it}
COST     O(log n + count), and O(n) of those that died in one ms
WRITES   nothing
]]
local dead, dead_messages = unpack(KEYS)
local score, id, upto, count = unpack(ARGV)

count = tonumber(count)
if not count or count < 1 or count > 1000 then return redis.error_reply('ERR dead takes a count of 1-1000') end

-- By bytes, as the sorted set does; Lua's own > goes by the server's locale.
local function follows(one, other)
  for i = 1, #one do
    local byte, by = string.byte(one, i), string.byte(other, i) or -1
    if byte ~= by then return byte > by end
  end
  return false
end

local page, offset = {}, 0
while #page < 3 * count do
  local found = redis.call('ZRANGE', dead, score, upto, 'BYSCORE', 'LIMIT', offset, count, 'WITHSCORES')
  for i = 1, #found, 2 do
    if #page < 3 * count and (tonumber(found[i + 1]) > tonumber(score) or follows(found[i], id)) then
      page[#page + 1] = found[i]
      page[#page + 1] = string.format('%.0f', found[i + 1])
      page[#page + 1] = redis.call('HGET', dead_messages, found[i]) or ''
    end
  end
  if #found < 2 * count then break end
  offset = offset + count
end
return page
