#!lua flags=allow-oom
--[[
finish: end held attempts, store their results, and hand out the next messages in the same call.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash
  quarantine:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string ndry_runs:string wake:list meta:hash events:stream flow_outbox:stream last_call:string
  then one result:list per result
ARGV
  caller       1-64 printable ASCII characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  lease_ms     length of each lock handed out, 1-86400000
  crash_limit  crashes that make a message dead, 0 = never
  limit        messages to hand out in the same call, 0-1000
  count        endings, 0-1000
  then six per ending: mid, token, outcome (done retry dead crashed snooze release unknown expired), detail (backoff
  ms, for retry then 0x1f and the traceback, 16 KiB at most, if there is one; or the reason of dead and crashed), age_ms since the run ended, record (event columns, 64 KiB at most);
  then three per result: index of its ending from 1, ttl_ms, bytes
RETURNS  {a word per ending: 'ok' | 'dead' (a crash too many) | 'stale' (not the holder), then, if limit > 0, the reply of
         dequeue starting at sleep_ms} | {'closed'}
COST     O(count + limit); upkeep of at most 100 mids
WRITES   nothing for a stale ending, nothing at all when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead,
  quarantine, keys, lines, turns, rests, rules,
  eoq_backoff, ndry_runs, wake, meta, events, flow_outbox, last_call = unpack(KEYS)
local caller, number, now, lease_ms, crash_limit, limit, count = unpack(ARGV, 1, 7)

--@include shared/_arguments
lease_ms = whole('lease_ms', lease_ms, 1, 86400000)
crash_limit, limit = whole('crash_limit', crash_limit, 0, 1000000), whole('limit', limit, 0, 1000)
count = whole('count', count, 0, 1000)
local FIRST, FIXED_KEYS = 8, 33
keys_are(FIXED_KEYS, FIXED_KEYS + count)
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
--@include _free

-- Rarely needed functions are created at first use.
local rare
local function rarely()
  if rare then return rare end
--@include _counters
--@include _text
--@include _notes
--@include _place
--@include _generation
--@include _mid
--@include _quarantine
--@include _attempts
--@include _ending
--@include _settle
--@include _recover
--@include _pick_slow
  rare = {
    promote = promote, recover = recover, take_over = take_over, set_aside = set_aside, drop_stale = drop_stale,
    readable = readable, strange_ones = strange_ones, counts = counts, lock_lengths = lock_lengths, settle = settle,
  }
  return rare
end

--@include _upkeep
--@include _pick
--@include _turns
--@include _handout
--@include _reply
--@include _endings

local function check_results()
  for j = 1, #KEYS - FIXED_KEYS do
    local at = FIRST + 6 * count + 3 * (j - 1)
    whole('index', ARGV[at], 1, count)
    whole('ttl_ms', ARGV[at + 1], 1, MAX_MS)
    if #ARGV[at + 2] > 2097152 then refuse('a result', '2 MiB at most') end
  end
end

-- A crash below the limit has no result yet.
local function store_results(words)
  for j = 1, #KEYS - FIXED_KEYS do
    local index, ttl_ms, bytes = unpack(ARGV, FIRST + 6 * count + 3 * (j - 1), FIRST + 6 * count + 3 * j - 1)
    local outcome = ARGV[FIRST + 6 * (index - 1) + 2]
    if words[tonumber(index)] == 'dead' or (words[tonumber(index)] == 'ok' and outcome ~= 'crashed') then
      redis.call('DEL', KEYS[FIXED_KEYS + j])
      redis.call('RPUSH', KEYS[FIXED_KEYS + j], bytes)
      redis.call('PEXPIRE', KEYS[FIXED_KEYS + j], ttl_ms)
    end
  end
end

local function append(words, items)
  local n = #words
  for i = 1, #items do words[n + i] = items[i] end
  return words
end

if #ARGV ~= FIRST - 1 + 6 * count + 3 * (#KEYS - FIXED_KEYS) then
  refuse('the number of arguments', 'six per ending and three per result behind the first seven')
end
check_endings(FIRST, count)
check_results()
local by = {stem = caller .. '.' .. number .. '.', lease_ms = lease_ms, crash_limit = crash_limit}
if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
--@include _counters
--@include _replay_dequeue
  return append(kept_words(call.kept), limit > 0 and replay_dequeue(call.kept, by.stem) or {})
end
for j = 1, members and #KEYS - FIXED_KEYS or 0 do
  with_result[ARGV[FIRST + 6 * (ARGV[FIRST + 6 * count + 3 * (j - 1)] - 1)]] = true
end
local words = {}
settle_all(words, FIRST, count, crash_limit)
store_results(words)
local handed = {}
if limit > 0 then
  local resting = resting_ms()
  tick()
  handed = resting > 0 and {resting, standing(), 0} or hand_out(limit, by)
end
save_lines()
save_members()
record_call(call, table.concat(words, '\31') .. '\30' .. (handed[1] and table.concat(without_contents(handed, lease_ms), '\31') or ''))
return append(words, handed)
