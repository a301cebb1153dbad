#!lua
--[[
publish: accept the messages of one staged batch, and drop the batch.

KEYS
  staged:hash messages:hash options:hash backoffs:hash ready:list due:zset circle:list left_ready:set
  left_circle:set eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller     random id of who calls, as in last_call's name
  number     of this call, counted up by the caller
  now        epoch ms, or '' for the server's clock
  dedupe_ms  after it is done, refuse its mid for so long
  born       the birth of the stage
  field      the batch
  ttl_ms     how long the rest of the stage is kept from now on
RETURNS  {'ok', number added, number whose mid lives already}; {'lost'} when the batch is gone; {'closed'}
COST     O(messages)
WRITES   nothing when it was lost, memory is full or the call is refused; messages that live already stay as they are
]]
local staged, messages, options, backoffs, ready, due, circle, left_ready, left_circle, eoq_backoff,
  wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, dedupe_ms, born, field, ttl_ms = unpack(ARGV, 1, 7)
local not_before, lock_ms = nil, ''

--@include shared/_arguments
keys_are(14)
arguments_are(7)
--@include queue/_stored
whole_or_none('dedupe_ms', dedupe_ms, 0, MOST_MS)
whole('ttl_ms', ttl_ms, 1, MOST_MS)
if #born > 512 or #field > 512 then refuse('born and field', '512 bytes at most') end
--@include queue/_call
--@include queue/_clock
--@include queue/_text
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
--@include queue/_wake
--@include queue/_place
--@include queue/_accept
--@include _batch

if refused() then return {'closed'} end
if replayed() then
--@include queue/_recorded
  return recorded_words()
end
local birth, batch = unpack(redis.call('HMGET', staged, 'born', field))
if birth ~= born or not batch then return {'lost'} end

local words = accept_batch(batch)
redis.call('HDEL', staged, field)
redis.call('PEXPIRE', staged, ttl_ms)
record_call(words)
return words
