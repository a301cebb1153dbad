#!lua
--[[
revive: put dead messages back, as new ones, on a person's word.

KEYS
  messages:hash locks:hash backoffs:hash options:hash ready:list due:zset circle:list left_ready:set left_circle:set
  dead:zset dead_messages:hash last_dead:hash keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream
  last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  then one per message: dead id, mid#generation, 1-1000 of them
RETURNS  {per message: 'revived' | 'exists': one of its mid lives | 'nil': not among the dead |
         'damaged': what is stored there is no dead message} | {'closed'}
COST     O(messages)
WRITES   nothing for one not revived; nothing at all when memory is full or the call is refused
]]
local messages, locks, backoffs, options, ready, due, circle, left_ready, left_circle, dead, dead_messages, last_dead,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now = unpack(ARGV, 1, 3)

--@include shared/_arguments
keys_are(22)
arguments_are(3, 1, 1000)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _text
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
probe('HLEN', messages, options, dead_messages, last_dead)
probe('LLEN', ready)
probe('ZCARD', dead)
--@include _wake
--@include _pace
--@include _lines
--@include _counters
--@include _place

local function revive(id)
  local mid, stored = string.match(id, '^(.*)#[^#]*$'), redis.call('HGET', dead_messages, id)
  if not stored then return 'nil' end
  local head, own, length = string.match(stored, '^(%d*\31%d*\31(%d*,%d*[^\31]*)\31(%d+)\31)')
  if not (head and mid) or #length > 7 or mid == '' or #mid > 512 or not is_text(mid) then return 'damaged' end
  local content = string.sub(stored, #head + length + 1)
  if redis.call('HSETNX', messages, mid, content) == 0 then return 'exists' end
  tick()
  if own ~= ',' then redis.call('HSET', options, mid, own) end
  redis.call('ZREM', dead, id)
  redis.call('HDEL', dead_messages, id)
  if redis.call('HGET', last_dead, mid) == id then redis.call('HDEL', last_dead, mid) end
  to_ready(mid)
  emit('revived', mid, now_ms, '\31\31\31\31\31\31\31\31\31' .. #content)
  return 'revived'
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words = {}
for i = 4, #ARGV do words[#words + 1] = revive(ARGV[i]) end
save_lines()
record_call(call, table.concat(words, '\31') .. '\30')
return words
