#!lua flags=allow-oom
--[[
clear: drop every live message. Running messages lose their token, so their outcome is rejected;
the fence continues, and dead messages stay.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset eoq_backoff:string ndry_runs:string wake:list meta:hash events:stream last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
RETURNS  {'cleared', messages} | {'members', how many messages of flows have not ended} | {'closed'}
COST     O(1) here; the server frees the memory in the background
WRITES   all keys but last_call's; nothing when the call is refused or members have not ended
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options,
  progress, ready, due, circle, done, left_ready, left_circle, keys, lines, turns, rests, eoq_backoff,
  ndry_runs, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now = unpack(ARGV)

--@include shared/_arguments
keys_are(27)
arguments_are(3)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  local words = kept_words(call.kept)
  return {words[1], tonumber(words[2])}
end
if members and members > 0 then return {'members', members} end
local words = {'cleared', redis.call('HLEN', messages)}
tick()
for i = 1, 24 do redis.call('UNLINK', KEYS[i]) end
redis.call('HDEL', meta, 'deduped')
emit('cleared', '', now_ms, '\31\31\31\31\31\31\31' .. words[2])
record_call(call, table.concat(words, '\31') .. '\30')
return words
