#!lua flags=allow-oom
--[[
take_out: take waiting or dead messages out of the queue, into the bin of an operation; put_back returns them.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream flow_outbox:stream bin:hash last_call:string
  then one result:list per message, if its end must be remembered
ARGV
  caller   1-64 printable ASCII characters, the connection's random id
  number   of this call, counted up by the caller
  now      epoch ms, or '' for the server's clock
  op       the operation's id, 1-64 letters, digits, dots, hyphens and underscores, which the events name
  life_ms  how long the bin is kept, 1-86400000; '' = delete the messages, without a bin
  place    'waiting' | 'dead': where the messages are
  then two per message: mid, generation, 1-250 of them. The generation of a waiting message is the token of its
           first attempt, '' before one ended, '*' = any; of a dead message, the part of its dead id after #
RETURNS  {per message: 'taken' | 'in bin': this operation took it before | 'nil': there is none | 'changed': it runs, is
         done, or is another | 'full': the bin holds 10,000 messages or 16 MiB | 'remembers': its content says how long its
         end is remembered, so taking it needs the result keys} | {'closed'}
COST     O(messages)
WRITES   nothing for one that isn't taken; nothing at all when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, flow_outbox, bin, last_call = unpack(KEYS)
local caller, number, now, op, life_ms, place = unpack(ARGV, 1, 6)

--@include shared/_arguments
local FIXED_KEYS, FIRST = 32, 7
keys_are(FIXED_KEYS, FIXED_KEYS + 250)
arguments_are(6, 1, 250, 2)
if #KEYS > FIXED_KEYS and #KEYS ~= FIXED_KEYS + (#ARGV - FIRST + 1) / 2 then refuse('keys', 'one per message to remember behind the others') end
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
life_ms = whole_or_none('life_ms', life_ms, 1, MAX_LOCK_MS)
one_of('place', place, 'waiting', 'dead')
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _probe_live
probe_live()
probe('HLEN', dead_messages, last_dead)
probe('ZCARD', dead)
local any = {left_ready = redis.call('SCARD', left_ready) > 0, left_circle = redis.call('SCARD', left_circle) > 0}
local nwake = redis.call('LLEN', wake)
--@include _members
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _counters
--@include _place
--@include _free
--@include _generation
--@include _waiting
--@include _bin
--@include _remember
operation(op)

-- result: its key, or nil
local function take_waiting(mid, generation, result)
  local why = not_waiting(mid, generation)
  if why then return why end
  local not_before, attempts = redis.call('HGET', backoffs, mid), redis.call('HGET', nattempts, mid)
  local parts = {not_before, attempts}
  for i, key in ipairs({ncrashes, nunknowns, generations, options, progress, messages}) do
    parts[i + 2] = redis.call('HGET', key, mid)
  end
  local ms = remember_ms_of(mid, parts[8])
  if ms and not result then return 'remembers' end
  if life_ms and not keep(place, mid, parts) then return 'full' end
  tick()
  emit('cancelled', mid, now_ms, '\31' .. (attempts or '') .. '\31\31\31\31\31\31' .. op)
  end_member('cancelled', mid)
  if not_before then leave_due(mid) else leave_ready(mid) end
  forget(mid)
  if ms then remember(result, attempts, ms) end
  return 'taken'
end

local function take_dead(mid, generation)
  local id = mid .. '#' .. generation
  local died_at, content = redis.call('ZSCORE', dead, id), redis.call('HGET', dead_messages, id)
  if not (died_at and content) then return 'nil' end
  local is_newest = redis.call('HGET', last_dead, mid) == id
  if life_ms and not keep(place, id, {died_at, is_newest and '1', content}) then return 'full' end
  tick()
  redis.call('ZREM', dead, id)
  redis.call('HDEL', dead_messages, id)
  if is_newest then redis.call('HDEL', last_dead, mid) end
  return 'taken'
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local take, words = place == 'dead' and take_dead or take_waiting, {}
for i = FIRST, #ARGV, 2 do
  local id = place == 'dead' and ARGV[i] .. '#' .. ARGV[i + 1] or ARGV[i]
  local taken = life_ms and redis.call('HEXISTS', bin, LETTERS[place] .. id) == 1
  words[#words + 1] = taken and 'in bin' or take(ARGV[i], ARGV[i + 1], KEYS[FIXED_KEYS + (i - FIRST) / 2 + 1])
end
close_bin(life_ms)
save_lines()
save_members()
record_call(call, table.concat(words, '\31') .. '\30')
return words
