#!lua
--[[
revive: move dead messages to the end of the queue, as if never delivered.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  then one per message: its id
RETURNS  the ids that were dead and wait now, in order; nil: there is no such queue
COST     O(ids * log(dead))
WRITES   nothing for an id that isn't dead; nothing at all if one is not an id, or if memory is full
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta, last_call = unpack(KEYS)

if #KEYS ~= 8 and #KEYS ~= 9 then return redis.error_reply('ERR usage: the eight keys of a queue, and perhaps last_call') end
--@include shared/_call
--@include _call
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _look
--@include _ids
--@include _issue
--@include _line

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local ids = ids_from(first_arg)
if not ids then return redis.error_reply('ERR usage: revive takes message ids, which look like 1601155608777-1') end
local before = kept_words()
if before then return before end
look()
if not exists then return false end

local revived = {}
for _, id in ipairs(ids) do
  if redis.call('ZREM', dead, id) == 1 then
    redis.call('HDEL', unacked, id)
    revived[#revived + 1] = id
  end
end
line_up(revived)
record_words(revived)
return revived
