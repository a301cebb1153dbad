#!lua
--[[
deliver: enqueue messages that have each their own time, whole or not at all.

KEYS
  messages:hash options:hash backoffs:hash ready:list due:zset circle:list left_ready:set left_circle:set
  eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller     random id of who calls, as in last_call's name
  number     of this call, counted up by the caller
  now        epoch ms, or '' for the server's clock
  dedupe_ms  after it is done, refuse its mid for so long
  batch      messages with their times, see _batch
RETURNS  {'ok', number added, number whose mid lives already}; {'closed'}
COST     O(messages)
WRITES   nothing when memory is full or the call is refused; messages that live already stay as they are
]]
local messages, options, backoffs, ready, due, circle, left_ready, left_circle, eoq_backoff, wake,
  meta, events, last_call = unpack(KEYS)
local caller, number, now, dedupe_ms, batch = unpack(ARGV, 1, 5)
local not_before, lock_ms = nil, ''

--@include shared/_arguments
keys_are(13)
arguments_are(5)
--@include queue/_stored
whole_or_none('dedupe_ms', dedupe_ms, 0, MOST_MS)
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
local words = accept_batch(batch)
record_call(words)
return words
