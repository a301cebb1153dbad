#!lua flags=allow-oom
--[[
finish: end held attempts, store their results, and hand out the next messages in the same call.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash generations:hash
  requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set dead:zset dead_messages:hash last_dead:hash eoq_backoff:string ndry_runs:string
  wake:list meta:hash events:stream last_call:string
  then one result:list per result
ARGV
  caller       16 characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  lease_ms     length of each lock handed out
  crash_limit  crashes that make a message dead, 0 = never
  limit        messages wanted besides, 0-1000
  count        endings, 0-1000
  then six per ending: mid, token, outcome (done retry dead crashed snooze release), detail (backoff
  ms, or the reason of dead and crashed), age_ms since the run ended, record (event columns);
  then three per result: index of its ending from 1, ttl_ms, bytes
RETURNS  {a word per ending: 'ok' | 'dead' (a crash too many) | 'stale' (not the holder), then as dequeue
         from sleep_ms on when limit > 0} | {'closed'}
COST     O(count + limit); upkeep of at most 100 mids
WRITES   nothing for a stale ending, nothing at all when the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, generations, requeue, options, progress,
  ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead, eoq_backoff,
  ndry_runs, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, lease_ms, crash_limit, limit, count = unpack(ARGV, 1, 7)

--@include _call
--@include _clock
--@include _place
--@include _generation
--@include _ending
--@include _upkeep
--@include _pick
--@include _handout
--@include _reply
limit, count = math.min(1000, tonumber(limit)), tonumber(count)
local FIRST, FIXED_KEYS = 8, 25
--@include _settle

-- A crash that isn't the last one has no result yet.
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
  for _, item in ipairs(items) do words[#words + 1] = item end
  return words
end

if refused() then return {'closed'} end
if replayed() then return append(recorded_words(), limit > 0 and handed_again() or {}) end
local words = {}
settle_all(words)
store_results(words)
local handed = {}
if limit > 0 then
  local resting = resting_ms()
  tick()
  handed = resting > 0 and {resting, paused == '1' and 1 or 0, 0} or hand_out(limit)
end
record_call(words, handed[1] and without_contents(handed))
return append(words, handed)
