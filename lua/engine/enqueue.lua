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
--@include _status
--@include _generation
--@include _newer
--@include _text

if refused() then return {'closed'} end
if replayed() then return recorded_words() end
for i = 10, #ARGV, 2 do
  if #ARGV[i] > 512 or #ARGV[i + 1] > 1048576 then return redis.error_reply('ERR message too large') end
  if #ARGV[i] == 0 or not is_text(ARGV[i]) then return redis.error_reply('ERR bad mid') end
end

local words, added, longest = {}, {}, max_content
for i = 10, #ARGV, 2 do
  local mid, content = ARGV[i], ARGV[i + 1]
  local action, reason = 'added', ''
  if redis.call('HSETNX', messages, mid, content) == 1 then
    write_options(mid)
    if not_before and not_before > now_ms then
      to_due(mid, not_before)
    elseif redis.call('SREM', left_ready, mid) == 0 then
      added[#added + 1] = mid
    else
      wake_up()
    end
  else
    action, reason = enqueue_again(mid, content)
  end
  if action ~= 'exists' then longest = math.max(longest, #content) end
  if level == 'all' and action ~= 'exists' then
    emit('enqueued', mid, now_ms, '\31\31\31\31\31\31\31' .. action)
  end
  words[#words + 1], words[#words + 2] = action, reason
end
for first = 1, #added, 1000 do
  redis.call('RPUSH', ready, unpack(added, first, math.min(#added, first + 999)))
end
if #added > 0 then wake_up() end
if longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
record_call(words)
return words
