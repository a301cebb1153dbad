#!lua
--[[
set_limits: set limits of a queue, of all of its keys, or of one key; effective from the next dequeue.

KEYS
  messages:hash options:hash locks:hash ready:list keys:hash lines:hash turns:zset rests:zset rules:hash eoq_backoff:string
  wake:list meta:hash events:stream
ARGV
  now       epoch ms, or '' for the server's clock
  key       of 512 bytes at most; '' = all keys that have no rule of their own
  in_queue  maximum number of running messages of the queue, 1-1000000000; '-' unchanged, '' = any number
  most      as in_queue, of a key
  starts    of a key in any span_ms, 1-1000000000; '-' as it is, '' = as all; none for all
  span_ms   1-2592000000; goes with starts
  weight    of a key's turns, 1-1000; '-', ''
  waiting   most messages in the line of a key, 1-1000000000; '-', ''
RETURNS  {most in the queue, then most, starts, span_ms, weight, waiting}; '' where there is no rule
COST     O(1); O(1000) for all keys
WRITES   nothing if no limit changes
]]
local messages, options, locks, ready, keys, lines, turns, rests, rules, eoq_backoff, wake, meta, events = unpack(KEYS)
local now, key, in_queue, most, starts, span_ms, weight, waiting = unpack(ARGV)

--@include shared/_arguments
keys_are(13)
arguments_are(8)
--@include _stored
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _text
if #key > 512 or not is_text(key) then refuse('key', 'UTF-8 without control characters, 512 bytes at most') end
local given = {most, starts, span_ms, weight, waiting}
if most ~= '-' then whole_or_none('most', most, 1, 1e9) end
if starts ~= '-' then whole_or_none('starts', starts, 1, 1e9) end
if span_ms ~= '-' then whole_or_none('span_ms', span_ms, 1, 2592000000) end
if weight ~= '-' then whole_or_none('weight', weight, 1, 1000) end
if waiting ~= '-' then whole_or_none('waiting', waiting, 1, 1e9) end
if (starts == '') ~= (span_ms == '') or (starts == '-') ~= (span_ms == '-') then refuse('starts', 'given with span_ms') end
if in_queue ~= '-' then whole_or_none('in_queue', in_queue, 1, 1e9) end
local changed_rule, before = {}, redis.call('HGET', rules, key)
for i, part in ipairs({string.match(before or ',,,,', '^(%d*),(%d*),(%d*),(%d*),(%d*)$')}) do changed_rule[i] = part end
for i = 1, 5 do
  if given[i] ~= '-' then changed_rule[i] = given[i] end
  changed_rule[i] = changed_rule[i] or ''
end
local any = {}
local nwake = redis.call('LLEN', wake)
probe('HLEN', messages, options, locks)
probe('LLEN', ready)
local begins = not turn
turn = turn or 0
--@include _wake
--@include _dequeue_rate
--@include _lines

local rule, most_before = table.concat(changed_rule, ','), redis.call('HGET', meta, 'max') or ''
if in_queue == '-' then in_queue = most_before end
local function write()
  tick()
  if begins then
    not_plain()
    redis.call('HSETNX', meta, 'turn', '0')
  end
  if in_queue == '' then redis.call('HDEL', meta, 'max') else redis.call('HSET', meta, 'max', in_queue) end
  if rule == ',,,,' then redis.call('HDEL', rules, key) else redis.call('HSET', rules, key, rule) end
  -- Keys waiting for a slot or a time by the previous rule are checked again.
  local all, again = in_lines(), {key}
  if key == '' then again = redis.call('ZRANGE', rests, '-inf', '(1e15', 'BYSCORE', 'LIMIT', 0, 1000) end
  for _, name in ipairs(again) do
    local s = name ~= '' and all.state_of(name)
    if s and s.resting and s.waiting > 0 and s.hold <= now_ms then
      redis.call('ZREM', rests, name)
      s.resting, s.touched = false, true
    end
    if s then all.offer(name, s) end
  end
  save_lines()
  wake_up()
end
if rule ~= (before or ',,,,') or in_queue ~= most_before then write() end
return {in_queue, unpack(changed_rule)}
