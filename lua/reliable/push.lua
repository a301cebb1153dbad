#!lua
--[[
push: append elements to a queue, all or none, and give each an id later than all before.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  then one per element
RETURNS  the ids, in order
COST     O(elements)
WRITES   messages and undelivered and tickets and meta and last_call; nothing at all when memory is full
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta, last_call = unpack(KEYS)

if #KEYS ~= 8 and #KEYS ~= 9 then return redis.error_reply('ERR usage: the eight keys of a queue, and perhaps last_call') end
--@include shared/_call
--@include _call
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _look
--@include _issue

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local before = kept_words()
if before then return before end
if #ARGV < first_arg then return redis.error_reply('ERR wrong number of arguments: push takes one element or more') end

look()
local ms, seq = string.match(last_id or '0-0', '^(%d+)-(%d+)$')
ms, seq = sane(ms), tonumber(seq)
-- An id that another program wrote says only that the ids before it are in the past.
if not ms or seq > 9007199254740990 then ms, seq = now_ms + 1, 0 end
if now_ms > ms then ms, seq = now_ms, 0 end

local ids = {}
for first = first_arg, #ARGV, 1000 do
  local some, pairs_of = {}, {}
  for i = first, math.min(#ARGV, first + 999) do
    seq = seq + 1
    if seq > 9007199254740990 then ms, seq = ms + 1, 0 end
    local id = string.format('%.0f-%.0f', ms, seq)
    ids[#ids + 1], some[#some + 1] = id, id
    pairs_of[#pairs_of + 1], pairs_of[#pairs_of + 2] = id, ARGV[i]
  end
  redis.call('HSET', messages, unpack(pairs_of))
  redis.call('RPUSH', undelivered, unpack(some))
  redis.call('RPUSH', tickets, unpack(some))
end
redis.call('HSET', meta, 'last_id', ids[#ids])
note_issue()
record_words(ids)
return ids
