#!lua
--[[
enqueue: accept messages, or newer content for mids that live, whole or not at all.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash generations:hash
  requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller       16 characters, the connection's random id
  number       of this call, counted up by the caller
  now          epoch ms, or '' for the server's clock
  delay_ms     not before now + delay_ms, '' = keep the place of a queued mid, start a new one now
  at           not before this epoch ms, '' = see delay_ms
  can_update   1: newer content may replace what waits
  can_requeue  1: newer content may run after the current run, or at once when that is done
  lock_ms      least length of this message's locks, '' = the worker's lease
  dedupe_ms    after it is done, refuse its mid for so long, '' = until collected
  then two per message: mid, content
RETURNS  {per message: action, reason}: 'added' '' | 'updated' '' | 'requeued' '' | 'exists' status;
         {'closed'}
COST     O(messages)
WRITES   nothing for 'exists'; nothing at all when memory is full or the call is refused
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, generations, requeue, options, progress,
  ready, due, circle, done, left_ready, left_circle, eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, delay_ms, at, can_update, can_requeue, lock_ms, dedupe_ms = unpack(ARGV, 1, 9)

--@include _call
--@include _clock
--@include _place
--@include _text
--@include _accept

if refused() then return {'closed'} end
if replayed() then return recorded_words() end
local mids, words, longest = {}, {}, max_content
for i = 10, #ARGV, 2 do
  local mid, size = ARGV[i], #ARGV[i + 1]
  if #mid > 512 or size > 1048576 then return redis.error_reply('ERR message too large') end
  if mid == '' then return redis.error_reply('ERR bad mid') end
  if size > longest then longest = size end
  mids[i / 2 - 4], words[i - 9], words[i - 8] = mid, 'added', ''
end
if not is_text(table.concat(mids, ' ')) then return redis.error_reply('ERR bad mid') end

local again = {}
for first = 10, #ARGV, 2000 do
  local batch = {unpack(ARGV, first, math.min(#ARGV, first + 1999))}
  local lives = accept(batch)
  for i = 1, next(lives) and #batch or 0, 2 do
    if lives[i] then again[#again + 1] = first + i - 1 end
  end
end

-- Only where they are needed: to make these functions costs more than a message.
if again[1] then
--@include _status
--@include _generation
--@include _newer
  for _, i in ipairs(again) do
    words[i - 9], words[i - 8] = enqueue_again(ARGV[i], ARGV[i + 1])
  end
  longest = max_content
  for i = 10, #ARGV, 2 do
    if words[i - 9] ~= 'exists' then longest = math.max(longest, #ARGV[i + 1]) end
  end
end

for i = 10, level == 'all' and #ARGV or 0, 2 do
  if words[i - 9] ~= 'exists' then
    local action = words[i - 9] == 'added' and '' or words[i - 9]
    emit('enqueued', ARGV[i], now_ms, '\31\31\31\31\31\31\31' .. action .. '\31\31' .. #ARGV[i + 1])
  end
end
if longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
record_call(words)
return words
