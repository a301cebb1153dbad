#!lua flags=allow-oom
--[[
cancel: prevent messages from running, or reject the outcomes of their current runs.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream flow_outbox:stream
  last_call:string
  then one result:list per message, if its end must be remembered
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  remember_ms  how long each end is remembered at least, '' = only for the time in its content
  then one per message: mid, 1-1000 of them
RETURNS  {per message: 'cancelled' | its status: 'nil' 'done-awaiting-gc' 'done-with-backoff' | 'remembers': its content says
         how long its end is remembered, so its cancel needs the result keys} | {'closed'}
COST     O(messages)
WRITES   nothing for a message not cancelled, nothing at all when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta,
  events, flow_outbox, last_call = unpack(KEYS)
local caller, number, now, remember_ms = unpack(ARGV, 1, 4)

--@include shared/_arguments
local FIXED_KEYS, FIRST = 28, 5
keys_are(FIXED_KEYS, FIXED_KEYS + 1000)
arguments_are(4, 1, 1000)
--@include _stored
remember_ms = whole_or_none('remember_ms', remember_ms, 1, MAX_MS)
local remembers = #KEYS > FIXED_KEYS or remember_ms
if #KEYS ~= FIXED_KEYS + (remembers and #ARGV - FIRST + 1 or 0) then refuse('keys', 'one per message to remember behind the others') end
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _probe_live
probe_live()
local any = {left_ready = redis.call('SCARD', left_ready) > 0, left_circle = redis.call('SCARD', left_circle) > 0}
local nwake = redis.call('LLEN', wake)
--@include _members
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _counters
--@include _place
--@include _status
--@include _free
--@include _generation

--@include _attempts
--@include _cancel
--@include _remember

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words = {}
for i = FIRST, #ARGV do
  local mid = ARGV[i]
  local content = redis.call('HGET', messages, mid)
  local word = content and status(mid, true) or 'nil'
  if word == 'nil' or word == 'done-awaiting-gc' or word == 'done-with-backoff' then
    words[#words + 1] = word
  else
    -- What is done stays so where only newer content is cancelled.
    local ms = word ~= 'done-with-requeue' and remember_ms_of(mid, content, remember_ms)
    if ms and not remembers then
      words[#words + 1] = 'remembers'
    else
      local attempts = ms and attempts_in(mid)
      cancel(mid, word)
      if ms then remember(KEYS[FIXED_KEYS + i - FIRST + 1], attempts, ms) end
      words[#words + 1] = 'cancelled'
    end
  end
end
save_lines()
save_members()
record_call(call, table.concat(words, '\31') .. '\30')
return words
