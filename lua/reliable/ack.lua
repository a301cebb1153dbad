#!lua flags=allow-oom
--[[
ack: delete delivered messages, which are done.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  [TOKEN text]  only messages of this holder
  then one per message: its id
RETURNS  the ids that were delivered and are gone now, in order; nil: there is no such queue
COST     O(ids * log(pending))
WRITES   nothing for an id that waits, is dead or unknown, or has another holder; nothing at all if one is not an id
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta, last_call = unpack(KEYS)

if #KEYS ~= 8 and #KEYS ~= 9 then return redis.error_reply('ERR usage: the eight keys of a queue, and perhaps last_call') end
--@include shared/_call
--@include _call
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _look
--@include _options
--@include _ids
--@include _held

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local options, rest = read_options({TOKEN = 'text'}, first_arg)
local ids = options and ids_from(rest)
if not ids then
  return redis.error_reply('ERR usage: ack takes [TOKEN text] and message ids, which look like 1601155608777-1')
end
local before = kept_words()
if before then return before end
look()
if not exists then return false end

local acked = held_of(ids, options.TOKEN)
for first = 1, #acked, 1000 do
  local some = {unpack(acked, first, math.min(#acked, first + 999))}
  redis.call('ZREM', delivered, unpack(some))
  redis.call('HDEL', messages, unpack(some))
  if nunacked > 0 then redis.call('HDEL', unacked, unpack(some)) end
  if ntokens > 0 then redis.call('HDEL', tokens, unpack(some)) end
end
record_words(acked)
return acked
