#!lua flags=allow-oom
--[[
dequeue: hand out ready messages, after a little upkeep of what waits.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash generations:hash
  requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set dead:zset dead_messages:hash last_dead:hash eoq_backoff:string ndry_runs:string
  wake:list meta:hash events:stream last_call:string
ARGV
  caller       16 characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  lease_ms     length of each lock, where the message has no longer lock_ms of its own
  crash_limit  crashes that make a message dead, 0 = never
  limit        messages wanted, 1-1000
RETURNS  {'handed', sleep_ms, paused, fence, then per message: mid, content, attempt, ncrashes,
         generation, lock_at}; sleep_ms > 0: nothing now, wait on wake so long | {'closed'}
COST     O(limit), 4 MiB of content; upkeep of at most 100 mids
WRITES   nothing while eoq_backoff holds or when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, generations, requeue, options, progress,
  ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead, eoq_backoff,
  ndry_runs, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, lease_ms, crash_limit, limit = unpack(ARGV)

--@include _call
--@include _clock
--@include _place
--@include _generation
--@include _ending
--@include _upkeep
--@include _pick
--@include _handout
--@include _reply

local function reply_with(handed)
  table.insert(handed, 1, 'handed')
  return handed
end

if refused() then return {'closed'} end
if replayed() then return reply_with(handed_again()) end
local resting = resting_ms()
if resting > 0 then return reply_with({resting, paused == '1' and 1 or 0, 0}) end

tick()
local handed = hand_out(math.min(1000, tonumber(limit)))
record_call({}, without_contents(handed))
return reply_with(handed)
