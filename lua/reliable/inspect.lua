#!lua flags=no-writes
--[[
inspect: show messages in their places, read-only.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
ARGV
  [PENDING]  delivered but unacknowledged messages, oldest delivery first
  [DEAD]     messages that were delivered too often, in the order of their deaths
  then start: how many to skip, negative: to begin so many before the end; count: how many to show, 1 or more,
             10,000 at most
  [NOW ms]   the time to use instead of the server's clock, epoch ms
RETURNS  {{id, content}, …}, oldest first, perhaps fewer than there are: about 256 KiB of them at most; with a word {{id, content, at ms, ms since, deliveries}, …};
         error EMPTYKEY: there is no such queue
COST     O(start + count); with a word O(log(n) + count)
WRITES   nothing
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS)

--@include shared/_arguments
keys_are(8)
--@include _options

local places, position = read_options({PENDING = true, DEAD = true}, 1)
position = places and position or #ARGV + 1
local start, count = string.match(ARGV[position] or '', '^-?%d+$'), whole_word(ARGV[position + 1])
local options, rest = read_options({NOW = 'number'}, position + 2)
if not start or #start > 15 or not count or count < 1 or (places.PENDING and places.DEAD) or not options or ARGV[rest] then
  return redis.error_reply('ERR usage: inspect takes [PENDING | DEAD] start count [NOW ms]; count is 1 or more')
end
--@include shared/_clock
--@include _clock
read_clock(options.NOW)
--@include _look
--@include _count
local PAGE_BYTES = 262144

look()
if not exists then return redis.error_reply('EMPTYKEY nothing was ever pushed there') end

start, count = tonumber(start), math.min(count, 10000)
local place = places.PENDING and delivered or places.DEAD and dead
local length = place and redis.call('ZCARD', place) or nwaiting
local first = start < 0 and math.max(0, length + start) or start
if first >= length then return {} end
local page
if place then
  page = redis.call('ZRANGE', place, first, first + count - 1, 'WITHSCORES')
else
  page = redis.call('LRANGE', undelivered, first, first + count - 1)
end

local shown, bytes = {}, 0
for i = 1, #page, place and 2 or 1 do
  if bytes >= PAGE_BYTES then break end
  local id = page[i]
  local row = {id, redis.call('HGET', messages, id) or ''}
  if place then
    local stamp = math.floor(sane(page[i + 1]) or 0) - (places.PENDING and skew or 0)
    local deliveries = count_of(redis.call('HGET', unacked, id)) + (places.PENDING and 1 or 0)
    row[3], row[4], row[5] = stamp, math.max(0, now_ms - stamp), deliveries
  end
  shown[#shown + 1], bytes = row, bytes + #id + #row[2]
end
return shown
