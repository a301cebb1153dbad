#!lua flags=allow-oom
--[[
collect: upkeep without a hand-out: promote what is due, recover expired locks, remove done messages and old dead ones.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  quarantine:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream flow_outbox:stream
ARGV
  now          epoch ms, or '' for the server's clock
  crash_limit  crashes that make a message dead, 0 = never
  limit        mids looked at in due, in the circle and among the dead, 1-1000
RETURNS  {'collected', mids left in the circle, mids left in due, how many are quarantined, ms until the earliest
         due one or 0 for none, 1 if more dead messages are beyond the queue's limits, entries in flow_outbox, the epoch that
         follows if the queue is sealed, else '0'}
COST     O(limit)
WRITES   keys that need upkeep; running it twice is harmless
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  quarantine, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, flow_outbox = unpack(KEYS)
local now, crash_limit, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(31)
arguments_are(3)
crash_limit, limit = whole('crash_limit', crash_limit, 0, 1000000), whole('limit', limit, 1, 1000)
--@include _stored
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _check_types
--@include _check_dead_types
--@include _members
--@include _wake
--@include _dequeue_rate
--@include _lines

-- Rarely needed functions are created at first use.
local rare
local function rarely()
  if rare then return rare end
--@include _counters
--@include _text
--@include _place
--@include _free
--@include _generation
--@include _mid
--@include _quarantine
--@include _attempts
--@include _ending
--@include _recover
  rare = {
    promote = promote, recover = recover, evict = evict,
  }
  return rare
end

--@include _upkeep

tick()
if any.due then rarely().promote(limit) end
walk(limit, crash_limit)
local surplus = any.dead and rarely().evict(limit, 0) or 0
-- A child may have died between taking the wake marker and its dequeue.
if turn then
  in_lines().end_rests(limit)
  save_lines()
end
save_members()
if paused ~= '1' and redis.call('LLEN', ready) + (turn and redis.call('ZCARD', turns) or 0) > 0 then wake_up() end
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
local due_ms, rest_ms = first and math.max(1, first - now_ms), turn and in_lines().next_rest()
if rest_ms then due_ms = math.min(due_ms or rest_ms, rest_ms) end
return {
  'collected', redis.call('LLEN', circle), redis.call('ZCARD', due), redis.call('HLEN', quarantine),
  due_ms or 0, surplus, nentries + (member_records[1] and 1 or 0), sealed or '0',
}
