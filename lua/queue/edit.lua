#!lua
--[[
edit: replace the content of waiting messages. Their attempts, options, time and place stay; a checkpoint, which
belongs to the former content, is deleted.

KEYS
  messages:hash locks:hash nattempts:hash generations:hash progress:hash done:set meta:hash events:stream bin:hash last_call:string
ARGV
  caller   1-64 printable ASCII characters, the connection's random id
  number   of this call, counted up by the caller
  now      epoch ms, or '' for the server's clock
  op       the id of the operation that this is part of
  life_ms  how long the bin of the operation keeps the former content, 1-86400000, '' = without a bin
  then three per message: mid, generation, content, 1-250 of them. The generation is the token of its first attempt,
           '' before one ended, '*' = any
RETURNS  {per message: 'edited' | 'same': that is its content | 'in bin': this operation edited it before | 'nil': there is
         none | 'changed': it runs, is done, or is
         another | 'full': the bin holds 10,000 messages or 16 MiB} | {'closed'}
COST     O(messages)
WRITES   nothing for one not edited; nothing at all when memory is full or the call is refused
]]
local messages, locks, nattempts, generations, progress, done, meta, events, bin, last_call = unpack(KEYS)
local caller, number, now, op, life_ms = unpack(ARGV, 1, 5)

--@include shared/_arguments
keys_are(10)
arguments_are(5, 1, 250, 3)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
life_ms = whole_or_none('life_ms', life_ms, 1, MAX_LOCK_MS)
local longest = 0
for i = 8, #ARGV, 3 do
  if #ARGV[i] > 1048576 then refuse('a content', '1 MiB at most') end
  longest = math.max(longest, #ARGV[i])
end
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
probe('HLEN', messages, locks, nattempts, generations, progress)
probe('SCARD', done)
--@include _counters
--@include _waiting
--@include _bin
operation(op)

local function edit(mid, generation, content)
  local why = not_waiting(mid, generation)
  if why then return why end
  local former = redis.call('HGET', messages, mid)
  if former == content then return 'same' end
  local parts = {
    redis.call('HGET', generations, mid) or '', redis.call('HGET', nattempts, mid), redis.call('HGET', progress, mid), former,
    content,
  }
  if life_ms and not keep('edited', mid, parts) then return 'full' end
  tick()
  redis.call('HSET', messages, mid, content)
  redis.call('HDEL', progress, mid)
  if level == 'all' then emit('enqueued', mid, now_ms, '\31\31\31\31\31\31\31updated\31\31' .. #content) end
  return 'edited'
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words, edited = {}, false
for i = 6, #ARGV, 3 do
  local before = life_ms and redis.call('HEXISTS', bin, LETTERS.edited .. ARGV[i]) == 1
  words[#words + 1] = before and 'in bin' or edit(ARGV[i], ARGV[i + 1], ARGV[i + 2])
  edited = edited or words[#words] == 'edited'
end
if edited and longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
close_bin(life_ms)
record_call(call, table.concat(words, '\31') .. '\30')
return words
