#!lua flags=allow-oom
--[[
nack: return delivered messages to the queue; a message handed out too often becomes dead.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  [TOKEN text]  only messages of this holder
  [FRONT]       before all waiting messages, in the order named; else after them
  [RELEASE]     unseen: this delivery doesn't count
  then one per message: its id
RETURNS  the ids that were delivered and are given back or dead now, in order; nil: there is no such queue
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
--@include _count
--@include _to_dead
--@include _issue
--@include _line

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local options, rest = read_options({TOKEN = 'text', FRONT = true, RELEASE = true}, first_arg)
local ids = options and ids_from(rest)
if not ids then
  return redis.error_reply('ERR usage: nack takes [TOKEN text] [FRONT] [RELEASE] and message ids, which look like 1601155608777-1')
end
local before = kept_words()
if before then return before end
look()
if not exists then return false end

local held, alive = held_of(ids, options.TOKEN), {}
for _, id in ipairs(held) do
  local count = options.RELEASE and 0 or count_one(id)
  if max_deliveries > 0 and count >= max_deliveries then
    to_dead(id)
  else
    alive[#alive + 1] = id
    redis.call('ZREM', delivered, id)
    redis.call('HDEL', tokens, id)
  end
end
line_up(alive, options.FRONT)
record_words(held)
return held
