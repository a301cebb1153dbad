#!lua flags=allow-oom
--[[
release: return unstarted messages to the front of ready, at no cost of an attempt.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  quarantine:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  then two per message: mid, token; the first is handed out first again; 1-1000 messages
RETURNS  {per message: 'ok' | 'stale'} | {'closed'}
COST     O(messages)
WRITES   nothing for a stale message, nothing at all when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  quarantine, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now = unpack(ARGV, 1, 3)

--@include shared/_arguments
keys_are(31)
arguments_are(3, 1, 1000, 2)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _check_types
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _counters
--@include _place
--@include _free
-- A release doesn't end any.
local function end_member() end
--@include _generation
--@include _attempts
--@include _ending
--@include _settle

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words, held = {}, {}
for i = 4, #ARGV, 2 do
  local mid = ARGV[i]
  local holds = not held[mid] and redis.call('HGET', tokens, mid) == ARGV[i + 1]
  words[#words + 1] = holds and 'ok' or 'stale'
  if holds then held[mid], held[#held + 1] = true, {mid, ARGV[i + 1], 'release', ''} end
end
if #held > 0 then tick() end
for i = #held, 1, -1 do settle(unpack(held[i])) end
save_lines()
record_call(call, table.concat(words, '\31') .. '\30')
return words
