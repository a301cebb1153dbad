#!lua flags=allow-oom
--[[
repair: move mids to the places where they belong by the facts about them, and correct the totals. For a person, after
fsck named the mids.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set dead:zset dead_messages:hash last_dead:hash quarantine:hash
  keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream flow_outbox:stream
ARGV
  now  epoch ms, or '' for the server's clock
  then one per mid, 0-100 of them
RETURNS  {per mid: 'ready' 'due' 'circle': where it is now | 'forgotten': there is no such message | 'quarantined':
         these bytes can't be a mid}
COST     O(ready + circle) per mid, O(due)
WRITES   the place of each mid, whatever it was; a second call is a no-op
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, dead, dead_messages, last_dead, quarantine,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, flow_outbox = unpack(KEYS)
local now = unpack(ARGV, 1, 1)

--@include shared/_arguments
keys_are(31)
arguments_are(1, 0, 100)
--@include _stored
--@include _counters
--@include shared/_clock
--@include _clock
read_clock(now)
if redis.call('EXISTS', keys, lines) > 0 then turn = turn or 0 end
--@include _check_types
--@include _check_dead_types
--@include _members
--@include _text
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _place
--@include _free
--@include _generation
--@include _mid
--@include _quarantine
--@include _check

local function take_out(mid)
  redis.call('LREM', ready, 0, mid)
  redis.call('LREM', circle, 0, mid)
  redis.call('ZREM', due, mid)
  if turn and in_line(mid) then in_lines().leave_line(mid) end
  redis.call('SREM', left_ready, mid)
  redis.call('SREM', left_circle, mid)
end

local function to_circle(mid)
  redis.call('HDEL', backoffs, mid)
  redis.call('RPUSH', circle, mid)
  return 'circle'
end

local function back_to_ready(mid)
  redis.call('HDEL', backoffs, mid)
  to_ready(mid)
  return 'ready'
end

local function back_to_due(mid, at)
  to_due(mid, at)
  return 'due'
end

local function repair(mid)
  local newest = redis.call('HGET', last_dead, mid)
  if newest and not redis.call('ZSCORE', dead, newest) then redis.call('HDEL', last_dead, mid) end
  take_out(mid)
  if not is_mid(mid) then
    set_aside(mid)
    return 'quarantined'
  elseif not has(messages, mid) then
    end_member('cancelled', mid)
    forget(mid)
    return 'forgotten'
  end
  local lock_at = stored(redis.call('HGET', locks, mid), LATEST_MS, 0)
  local not_before = stored(redis.call('HGET', backoffs, mid), LATEST_MS, nil)
  local held = lock_at > now_ms and has(tokens, mid) and not finished(mid)
  if not held then free({mid}) end
  if finished(mid) then return not_before and back_to_due(mid, not_before) or to_circle(mid) end
  if held then return to_circle(mid) end
  if not_before then return back_to_due(mid, not_before) end
  return back_to_ready(mid)
end

local function repair_meta()
  if not plain_holds() then redis.call('HDEL', meta, 'plain_until') end
  for field, most in pairs(SETTINGS) do
    local text = redis.call('HGET', meta, field)
    local is_seal = field == 'max_content' and text == 'sealed'
    if text and not is_seal and not stored(text, most, nil) then redis.call('HDEL', meta, field) end
  end
  local deduped = 0
  for _, mid in ipairs(redis.call('ZRANGE', due, 0, -1)) do
    if finished(mid) then deduped = deduped + 1 end
  end
  if deduped ~= count_of(meta, 'deduped') then redis.call('HSET', meta, 'deduped', deduped) end
end

-- Members that haven't ended, counted in their places.
local function repair_members()
  local nmembers = 0
  local function count(mids)
    for _, mid in ipairs(mids) do
      if string.byte(mid) == TILDE and has(messages, mid) and not finished(mid) then nmembers = nmembers + 1 end
    end
  end
  for _, list in ipairs({{ready, left_ready}, {circle, left_circle}}) do
    for first = 0, redis.call('LLEN', list[1]) - 1, 1000 do
      local here = {}
      for _, mid in ipairs(redis.call('LRANGE', list[1], first, first + 999)) do
        if redis.call('SISMEMBER', list[2], mid) == 0 then here[#here + 1] = mid end
      end
      count(here)
    end
  end
  for first = 0, redis.call('ZCARD', due) - 1, 1000 do count(redis.call('ZRANGE', due, first, first + 999)) end
  count(redis.call('HVALS', lines))
  if nmembers > 0 or members then redis.call('HSET', meta, 'members', string.format('%.0f', nmembers)) end
end

-- States, turns and rests of all keys, from the mids in lines and the locks. A place that isn't its message's is
-- dropped.
local function repair_keys()
  local all, counts = in_lines(), {}
  local function of(key)
    counts[key] = counts[key] or {waiting = 0, running = 0}
    return counts[key]
  end
  for _, key in ipairs(redis.call('HKEYS', keys)) do
    if key ~= '' then of(key) end
  end
  for _, place in ipairs(redis.call('HKEYS', lines)) do
    local mid, slot, key = redis.call('HGET', lines, place), line_place(place)
    if slot and in_line(mid) and string.find(redis.call('HGET', options, mid), ',o?' .. string.gsub(slot, '%-', '%%-') .. ',') then
      local seen, number = of(key), tonumber(slot)
      seen.waiting = seen.waiting + 1
      seen.head, seen.tail = math.min(seen.head or number, number), math.max(seen.tail or number, number)
    else
      redis.call('HDEL', lines, place)
    end
  end
  for _, mid in ipairs(redis.call('HKEYS', locks)) do
    local key = all.key_in(redis.call('HGET', options, mid))
    if key then of(key).running = of(key).running + 1 end
  end
  redis.call('DEL', turns)
  redis.call('ZREMRANGEBYSCORE', rests, '-inf', LATEST_MS) -- later names are of keep_key
  redis.call('HDEL', keys, '')
  for key, seen in pairs(counts) do
    local s = all.state_of(key)
    s.waiting, s.running, s.turned, s.resting, s.touched = seen.waiting, seen.running, false, false, true
    s.head, s.tail = seen.head or 0, (seen.tail or -1) + 1
    all.offer(key, s)
  end
end

tick()
if turn then
  redis.call('HSETNX', meta, 'turn', '0')
  repair_keys()
end
local words = {}
for i = 2, #ARGV do words[#words + 1] = repair(ARGV[i]) end
save_lines()
save_members()
repair_meta()
repair_members()
return words
