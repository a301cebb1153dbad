#!lua flags=allow-oom
--[[
recover: hand out again unacknowledged messages delivered so long ago, oldest delivery first, each at most once.

KEYS
  undelivered:list tickets:list delivered:zset messages:hash unacked:hash tokens:hash dead:zset meta:hash
  last_call:string, which may be left out
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  then count: messages wanted, 10,000 at most; elapsed: ms since their last delivery, or more
  [TOKEN text]   their new holder: ack, nack and extend that name another holder are refused
  [DELIVERIES]   a third item per message: how often it has been handed out, this time included
RETURNS  {{id, content}, …}; nil: there is no such queue
COST     O(count * log(pending)); at most 1,000 more that die
WRITES   nothing when an argument or the type of a key is wrong
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta, last_call = unpack(KEYS)

if #KEYS ~= 8 and #KEYS ~= 9 then return redis.error_reply('ERR usage: the eight keys of a queue, and perhaps last_call') end
--@include shared/_call
--@include _call
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _look
--@include _keep
--@include _options
--@include _to_dead
--@include _count
--@include _handout
--@include _overdue
--@include _rows

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local count, elapsed = whole_word(ARGV[first_arg]), whole_word(ARGV[first_arg + 1])
local options, rest = read_options({TOKEN = 'text', DELIVERIES = true}, first_arg + 2)
if not count or not elapsed or not options or ARGV[rest] then
  return redis.error_reply('ERR usage: recover takes count, elapsed (0 or more), TOKEN text, DELIVERIES')
end
local more = options.DELIVERIES and 'deliveries'
local before = kept_words()
if before then return rows(held_still(before), 'id', 'content', more) end
look()
if not exists then return false end

local handed = {}
recover_overdue(math.min(count, 10000), elapsed, handed, options.TOKEN or '')
keep_time()
record_words(words_of(handed))
return rows(handed, 'id', 'content', more)
