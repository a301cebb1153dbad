#!lua
--[[
tick: enqueue the call of one tick of a schedule. Any number of processes may ask for the same tick: ticks only move
forward, so each tick is enqueued once.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream
  ticks:hash tick_log:list
  then the result:list of the previous run, if its end must be remembered
ARGV
  now        epoch ms, or '' for the server's clock
  name       the schedule's, 1-256 bytes
  tick_ms    the time that the tick stands for, epoch ms
  after_ms   the caller's last tick, as returned by 'schedules'
  due_ms     earliest time to enqueue it, epoch ms
  overlap    what to do while the previous run is unfinished: 'skip' | 'queue' | 'allow' | 'cancel'; or 'miss': enqueue
             nothing, the tick was missed; or 'run': enqueue immediately, as 'allow', and leave the ticks unchanged
  missed     how many ticks before it were missed
  mid        of the message, unless the previous run passes its mid on
  content    of the message, up to 1 MiB
  lock_ms    minimum length of the message's locks, 1-86400000, '' = the worker's lease
  dedupe_ms  how long to reject its mid after it is done, '' = until collected
  keyed      'key' or 'ordered': the message has a key, as in enqueue; '' = none
  key        of the message, 512 bytes at most, or ''
RETURNS  {'enqueued' | 'waits' | 'replaced', mid}: the message is accepted; it waits for the previous run, or took its
         place | {'skipped', mid of the previous run} | {'missed', ''} | {'full', ''}: the key's line is full | {'exists', last tick}: that is
         not the caller's last tick, or not earlier than this tick | {'early', now}
         | {'paused', ''} | {'new', now}: the schedule was unknown and starts now | {'clock', now}: the last tick was
         later than now, so ticks continue from now | {'remembers', mid of the previous run}: its content says how long its end is
         remembered, so this tick needs its result key | {'sealed', epoch}: the queue is sealed and rejects ticks
COST     O(1)
WRITES   nothing for 'exists', 'early', 'paused', 'remembers' and 'sealed'
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, ticks, tick_log = unpack(KEYS)
local now, name, tick_ms, after_ms, due_ms, overlap, missed, mid, content, lock_ms, dedupe_ms,
  keyed, key = unpack(ARGV)

--@include shared/_arguments
keys_are(28, 29)
arguments_are(13)
--@include _stored
one_of('keyed', keyed, '', 'key', 'ordered')
whole_or_none('lock_ms', lock_ms, 1, MAX_LOCK_MS)
whole_or_none('dedupe_ms', dedupe_ms, 0, MAX_MS)
--@include _text
if #key > 512 or (key == '') ~= (keyed == '') or not is_text(key) then
  refuse('key', 'UTF-8 without control characters, 512 bytes at most, where keyed says so')
end
if #content > 1048576 then refuse('content', '1 MiB at most') end
--@include shared/_clock
--@include _clock
--@include _schedules
--@include _tick
tick_ms, after_ms, due_ms, missed = tick_arguments(name, tick_ms, after_ms, due_ms, overlap, missed, mid)
read_clock(now)
if sealed then return {'sealed', sealed} end

local known = schedule_state(name)
if string.byte(known.mid) == 126 then known.mid = '' end
local last, clock = last_tick(known, now_ms)
probe('LLEN', tick_log)
if overlap ~= 'run' then
  local reply = untaken(name, known, last, clock, tick_ms, after_ms, due_ms)
  if reply then return reply end
end

--@include _probe_live
probe_live()
local any = {
  left_ready = redis.call('SCARD', left_ready) > 0, left_circle = redis.call('SCARD', left_circle) > 0,
  newer = true, sides = true,
}
local nwake = redis.call('LLEN', wake)
local begins = key ~= '' and not turn
if begins then turn = 0 end
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _notes
--@include _counters
--@include _place
--@include _accept
--@include _status
--@include _free
-- Runs of schedules are not members.
local function end_member() end
local TILDE = 126
--@include _generation
--@include _newer
--@include _attempts
--@include _cancel
--@include _remember

-- Whether a run of the message is under way or still pending.
local function is_live(word)
  return word ~= 'nil' and (word == 'done-with-requeue' or string.sub(word, 1, 4) ~= 'done')
end

local function put(target)
  if #content > max_content then redis.call('HSET', meta, 'max_content', #content) end
  local given = {
    not_before = now_ms, own = lock_ms .. ',' .. dedupe_ms, can_update = '1', can_requeue = '1', again = '',
    key_of = {[target] = key ~= '' and key or nil}, mark = keyed == 'ordered' and 'o' or '',
  }
  local action = 'added'
  if status(target) ~= 'nil' then
    action = enqueue_again(target, content, given)
  else
    write_each({target, content}, {})
    if key == '' then
      write_options({target}, given.own)
      put_ready({target})
    else
      in_lines().put({target}, given.key_of, given.own, given.mark)
    end
  end
  if begins then
    not_plain()
    redis.call('HSETNX', meta, 'turn', '0')
  end
  if level == 'all' then
    local kind = action == 'added' and '' or action
    emit('enqueued', target, now_ms, '\31\31\31\31\31\31\31' .. kind .. '\31\31' .. #content .. (key ~= '' and '\31\31' .. key or ''))
  end
end

local word = known.mid ~= '' and status(known.mid) or 'nil'
local outcome, target = 'enqueued', mid
if overlap == 'miss' then
  outcome, target = 'missed', ''
elseif is_live(word) and overlap ~= 'allow' and overlap ~= 'run' then
  outcome, target = overlap == 'skip' and 'skipped' or overlap == 'queue' and 'waits' or 'replaced', known.mid
end
-- Content that replaces another message makes no line longer.
if outcome == 'enqueued' and key ~= '' and in_lines().full_line({mid}, {[mid] = key}) then outcome, target = 'full', '' end
local kept_ms, attempts
if outcome == 'replaced' and word ~= 'done-with-requeue' then
  kept_ms = remember_ms_of(target, redis.call('HGET', messages, target))
  if kept_ms and KEYS[29] ~= string.sub(messages, 1, -9) .. 'result:' .. target then return {'remembers', target} end
  attempts = kept_ms and attempts_in(target)
end
local runs = outcome == 'enqueued' or outcome == 'waits' or outcome == 'replaced'
tick()
if outcome == 'replaced' then
  cancel(target, word)
  if kept_ms then remember(KEYS[29], attempts, kept_ms) end
  -- If a run must first be notified, its mid stays taken until its lock ends, so the new run waits that long.
  if status(target) == 'nil' then target = mid end
end
if runs then put(target) end
save_lines()
keep_tick(name, known, overlap == 'run' and last or tick_ms, target == '' and known.mid or target)
log_tick(name, tick_ms, now_ms - due_ms, outcome, missed, target)
emit('tick', '', now_ms, table.concat(
  {name, string.format('%.0f', missed), string.format('%.0f', due_ms), '', '', '', '', outcome, target}, '\31'))
return {outcome, target}
