#!lua
--[[
revive: enqueue dead messages again as new messages, as requested by a person.

KEYS
  messages:hash locks:hash backoffs:hash options:hash ready:list due:zset circle:list left_ready:set left_circle:set
  dead:zset dead_messages:hash last_dead:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream bin:hash
  last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  op      the id of the operation that this is part of, which the events name, '' = none
  life_ms  how long the bin of the operation keeps their former values, 1-86400000, '' = without a bin
  then two per message: dead id, mid#generation; not_before, epoch ms, '' = now. 1-1000 of them
RETURNS  {per message: 'revived' | 'exists': its mid is live | 'nil': not among the dead |
         'damaged': the stored value isn't a dead message | 'full': the bin is full | 'sealed': the queue is}
         | {'closed'}
COST     O(messages)
WRITES   nothing for one not revived; nothing at all when memory is full or the call is refused
]]
local messages, locks, backoffs, options, ready, due, circle, left_ready, left_circle, dead, dead_messages, last_dead,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, bin, last_call = unpack(KEYS)
local caller, number, now, op, life_ms = unpack(ARGV, 1, 5)

--@include shared/_arguments
keys_are(23)
arguments_are(5, 1, 1000, 2)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
for i = 7, #ARGV, 2 do whole_or_none('not_before', ARGV[i], 0, LATEST_MS) end
life_ms = whole_or_none('life_ms', life_ms, 1, MAX_LOCK_MS)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _text
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
probe('HLEN', messages, options, backoffs, dead_messages, last_dead)
probe('LLEN', ready)
probe('ZCARD', dead, due)
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _counters
--@include _place
--@include _bin
if op ~= '' or life_ms then operation(op) end

local nmembers = 0
local function revive(id, not_before)
  local mid, text = string.match(id, '^(.*)#[^#]*$'), redis.call('HGET', dead_messages, id)
  if not text then return 'nil' end
  if sealed then return 'sealed' end
  local head, own, length = string.match(text, '^(%d*\31%d*\31(%d*,%d*[^\31]*)\31(%d+)\31)')
  if not (head and mid) or #length > 7 or mid == '' or #mid > 512 or not is_text(mid) then return 'damaged' end
  local content = string.sub(text, #head + length + 1)
  if redis.call('HEXISTS', messages, mid) == 1 then return 'exists' end
  local is_newest = redis.call('HGET', last_dead, mid) == id
  if life_ms and not keep('revived', id, {redis.call('ZSCORE', dead, id), is_newest and '1', text}) then return 'full' end
  tick()
  redis.call('HSET', messages, mid, content)
  if string.byte(mid) == 126 then nmembers = nmembers + 1 end
  if own ~= ',' then
    not_plain()
    redis.call('HSET', options, mid, own)
  end
  redis.call('ZREM', dead, id)
  redis.call('HDEL', dead_messages, id)
  if is_newest then redis.call('HDEL', last_dead, mid) end
  if not_before == '' then to_ready(mid) else to_due(mid, tonumber(not_before)) end
  emit('revived', mid, now_ms, '\31\31\31\31\31\31\31' .. op .. '\31\31' .. #content)
  return 'revived'
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words = {}
for i = 6, #ARGV, 2 do words[#words + 1] = revive(ARGV[i], ARGV[i + 1]) end
close_bin(life_ms)
save_lines()
if nmembers > 0 then
  not_plain()
  redis.call('HSET', meta, 'members', string.format('%.0f', (members or 0) + nmembers))
end
record_call(call, table.concat(words, '\31') .. '\30')
return words
