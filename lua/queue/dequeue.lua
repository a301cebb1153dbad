#!lua flags=allow-oom
--[[
dequeue: hand out ready messages, after a little upkeep.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  quarantine:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string ndry_runs:string wake:list meta:hash events:stream flow_outbox:stream last_call:string
ARGV
  caller       1-64 printable ASCII characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  lease_ms     length of each lock, unless the message has a longer lock_ms, 1-86400000
  crash_limit  crashes that make a message dead, 0 = never
  limit        messages wanted, 1-1000
RETURNS  {'handed', sleep_ms, paused, fence, then per message: mid, content, attempt, ncrashes,
         generation, lock_at, times handed to a worker that doesn't know its job}; sleep_ms > 0: none now, wait
         on wake so long, and in place of fence ms until the earliest due message (0: none, or another client knows)
         | {'closed'}
COST     O(limit), 4 MiB of content; upkeep of at most 100 mids, 1,000 stale copies dropped
WRITES   nothing while eoq_backoff holds or when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  quarantine, keys, lines, turns, rests, rules,
  eoq_backoff, ndry_runs, wake, meta, events, flow_outbox, last_call = unpack(KEYS)
local caller, number, now, lease_ms, crash_limit, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(33)
lease_ms = whole('lease_ms', lease_ms, 1, 86400000)
crash_limit, limit = whole('crash_limit', crash_limit, 0, 1000000), whole('limit', limit, 1, 1000)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _check_types
--@include _check_dead_types
--@include _members
probe('STRLEN', eoq_backoff, ndry_runs)
--@include _wake
--@include _dequeue_rate
--@include _lines

-- Rarely needed functions are created at first use.
local rare
local function rarely()
  if rare then return rare end
--@include _counters
--@include _text
--@include _notes
--@include _place
--@include _free
--@include _generation
--@include _mid
--@include _quarantine
--@include _attempts
--@include _ending
--@include _recover
--@include _pick_slow
  rare = {
    promote = promote, recover = recover, take_over = take_over, set_aside = set_aside, drop_stale = drop_stale,
    readable = readable, strange_ones = strange_ones, counts = counts, lock_lengths = lock_lengths,
  }
  return rare
end

--@include _upkeep
--@include _pick
--@include _turns
--@include _handout
--@include _reply

local function reply_with(handed)
  table.insert(handed, 1, 'handed')
  return handed
end

local by = {stem = caller .. '.' .. number .. '.', lease_ms = lease_ms, crash_limit = crash_limit}
if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
--@include _counters
--@include _replay_dequeue
  return reply_with(replay_dequeue(call.kept, by.stem))
end
local resting = resting_ms()
if resting > 0 then return reply_with({resting, standing(), 0}) end

tick()
local handed = hand_out(limit, by)
save_lines()
save_members()
record_call(call, '\30' .. table.concat(without_contents(handed, lease_ms), '\31'))
return reply_with(handed)
