#!lua flags=allow-oom
--[[
pop: hand out the longest-waiting messages of several queues, in the given order of queues. Messages stay pending until
they are acknowledged.

KEYS
  then eight per queue, the first queue first: undelivered:list tickets:list delivered:zset messages:hash unacked:hash
  tokens:hash dead:zset meta:hash; one more may follow, last_call:string
ARGV
  with last_call two come first: number of this call of its caller; epoch ms, or '' for the server's clock
  [COUNT n]      messages wanted, by default 1, 10,000 at most
  [RECOVER ms]   first unacknowledged messages delivered so long ago
  [TOKEN text]   who holds them: ack, nack and extend that name another holder are refused
  [TICKET id]    the ticket that the caller took by a blocking pop of the first queue's tickets; COUNT 0 returns it
  [DELIVERIES]   a fourth item per message: how often it has been handed out, this time included
RETURNS  {{queue, id, content}, …}; empty: no message waits that isn't promised to a client
COST     O(queues + count * log(pending))
WRITES   nothing when an argument or the type of a key is wrong
]]
local undelivered, tickets, delivered, messages, unacked, tokens, dead, meta
local last_call = #KEYS % 8 == 1 and KEYS[#KEYS] or nil
local nqueues = math.floor(#KEYS / 8)

--@include shared/_call
--@include _call
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _look
--@include _keep
--@include _options
--@include _tickets
--@include _take
--@include _to_dead
--@include _count
--@include _handout
--@include _overdue
--@include _rows

local KNOWN = {COUNT = 'number', RECOVER = 'number', TOKEN = 'text', TICKET = 'text', DELIVERIES = true}

local function turn_to(queue)
  undelivered, tickets, delivered, messages, unacked, tokens, dead, meta = unpack(KEYS, queue * 8 - 7, queue * 8)
  look()
end

local function hand_out_of(queue, wanted, options, handed)
  local before = #handed
  mend_tickets()
  if options.RECOVER then recover_overdue(wanted, options.RECOVER, handed, options.TOKEN or '') end
  hand_out(take_waiting(wanted - #handed + before, queue == 1 and options.TICKET), handed, options.TOKEN or '')
  if #handed > before then keep_time() end
  for i = before + 1, #handed do handed[i].queue, handed[i].name = queue, queue_name() end
end

if refused() then return redis.error_reply('ERR usage: a call has a number, no older than the last of its caller, and a time') end
local options, rest = read_options(KNOWN, first_arg)
if not options or ARGV[rest] or nqueues == 0 or #KEYS % 8 > 1 then
  return redis.error_reply('ERR usage: pop takes COUNT n, RECOVER ms, TOKEN text, TICKET id, DELIVERIES')
end
local more, wanted = options.DELIVERIES and 'deliveries', math.min(options.COUNT or 1, 10000)
local before = kept_words()
if before then return rows(held_still(before, turn_to), 'name', 'id', 'content', more) end

-- A key of a wrong type raises here, before anything of the queues before it changes.
for queue = 1, nqueues do turn_to(queue) end
local handed = {}
for queue = 1, nqueues do
  if nqueues > 1 then turn_to(queue) end
  hand_out_of(queue, wanted - #handed, options, handed)
  if #handed >= wanted then break end
end
record_words(words_of(handed))
return rows(handed, 'name', 'id', 'content', more)
