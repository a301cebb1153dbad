#!lua
--[[
tick_partitioned: accept one tick of a schedule whose queue has partitions. Its message is kept here until a client has
sent it to its partition; `ticks_sent` returns such messages. Any number of processes may ask for the same tick: ticks
only move forward, so each tick is accepted once.

KEYS
  meta:hash events:stream ticks:hash tick_log:list tick_sends:hash
ARGV
  now       epoch ms, or '' for the server's clock
  name      the schedule's, 1-256 bytes
  tick_ms   the time that the tick stands for, epoch ms
  after_ms  the caller's last tick, as returned by 'schedules'
  due_ms    earliest time to enqueue it, epoch ms
  overlap   as in 'tick'
  missed    how many ticks before it were missed
  mid       of the message, unless the previous run passes its mid on
  before    mid of the previous run, whose status the caller has read, '' = none
  is_live   1: that run is unfinished, '' = it has ended
  message   what the client needs to send it, up to 1 MiB and 4 KiB
RETURNS  {'enqueued' | 'waits' | 'replaced', mid}: the message is kept | {'skipped', mid of the previous run}
         | {'missed', ''} | {'exists', last tick} | {'early', now} | {'paused', ''} | {'new', now} | {'clock', now}: as in 'tick'
         | {'look', mid of the previous run}: the caller must read its status and call again | {'unsent', ''}: the message of an
         earlier tick is still kept | {'open', ''}: the queue isn't sealed, so 'tick' enqueues
COST     O(1)
WRITES   nothing for 'exists', 'early', 'paused', 'look', 'unsent' and 'open'
]]
local meta, events, ticks, tick_log, tick_sends = unpack(KEYS)
local now, name, tick_ms, after_ms, due_ms, overlap, missed, mid, before, is_live, message = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(11)
--@include _stored
one_of('is_live', is_live, '', '1')
--@include _text
if #message > 1052672 then refuse('message', '1 MiB and 4 KiB at most') end
--@include shared/_clock
--@include _clock
--@include _schedules
--@include _tick
tick_ms, after_ms, due_ms, missed = tick_arguments(name, tick_ms, after_ms, due_ms, overlap, missed, mid)
read_clock(now)
if not sealed then return {'open', ''} end

local known = schedule_state(name)
if string.byte(known.mid) == 126 then known.mid = '' end
local last, clock = last_tick(known, now_ms)
probe('LLEN', tick_log)
probe('HLEN', tick_sends)
if overlap ~= 'run' then
  local reply = untaken(name, known, last, clock, tick_ms, after_ms, due_ms)
  if reply then return reply end
end
if redis.call('HEXISTS', tick_sends, name) == 1 then return {'unsent', ''} end
local asks = known.mid ~= '' and overlap ~= 'miss' and overlap ~= 'allow' and overlap ~= 'run'
if asks and before ~= known.mid then return {'look', known.mid} end

local outcome, target = 'enqueued', mid
if overlap == 'miss' then
  outcome, target = 'missed', ''
elseif asks and is_live == '1' then
  outcome, target = overlap == 'skip' and 'skipped' or overlap == 'queue' and 'waits' or 'replaced', known.mid
end
tick()
if outcome ~= 'missed' and outcome ~= 'skipped' then
  -- A partition accepts each number of a schedule once. Numbers also rise after a failover that lost the latest number.
  -- A message takes a few numbers, because a client makes several calls for it.
  local number = math.max(now_ms, stored(redis.call('HGET', meta, 'tick_number'), LATEST_MS, 0) + 10)
  redis.call('HSET', meta, 'tick_number', string.format('%.0f', number))
  redis.call('HSET', tick_sends, name, table.concat({string.format('%.0f', number), outcome, target, message}, '\31'))
end
keep_tick(name, known, overlap == 'run' and last or tick_ms, target == '' and known.mid or target)
log_tick(name, tick_ms, now_ms - due_ms, outcome, missed, target)
emit('tick', '', now_ms, table.concat(
  {name, string.format('%.0f', missed), string.format('%.0f', due_ms), '', '', '', '', outcome, target}, '\31'))
return {outcome, target}
