#!lua flags=allow-oom
--[[
reschedule: set the earliest start of waiting messages, or let them run now. Setting the former time undoes it.

KEYS
  messages:hash locks:hash backoffs:hash generations:hash options:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset rules:hash
  eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller  1-64 printable ASCII characters, the connection's random id
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  then three per message: mid, generation, not_before, 1-250 of them. The generation is the token of its first attempt,
          '' before one ended, '*' = any; not_before an epoch ms, '' = now
RETURNS  {per message: word, former time}: 'moved', epoch ms or '' if it could run immediately | 'same', '': it could run
         already | 'nil', '' | 'changed', '': it runs, is done, or is another; {'closed'}
COST     O(messages)
WRITES   nothing for one not moved; nothing at all when the call is refused
]]
local messages, locks, backoffs, generations, options, ready, due, circle, done, left_ready, left_circle,
  keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now = unpack(ARGV, 1, 3)

--@include shared/_arguments
keys_are(21)
arguments_are(3, 1, 250, 3)
--@include _stored
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
for i = 6, #ARGV, 3 do whole_or_none('not_before', ARGV[i], 0, LATEST_MS) end
local call = open_call(last_call, number)
--@include shared/_clock
--@include _clock
read_clock(now)
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
probe('HLEN', messages, locks, backoffs, generations, options)
probe('LLEN', ready)
probe('SCARD', done)
probe('ZCARD', due)
--@include _wake
--@include _dequeue_rate
--@include _lines
--@include _place
--@include _waiting

-- -> word, former time
local function reschedule(mid, generation, not_before)
  local why = not_waiting(mid, generation)
  if why then return why, '' end
  local former = redis.call('HGET', backoffs, mid)
  if not former and not_before == '' then return 'same', '' end
  tick()
  if not_before == '' then
    leave_due(mid)
    to_ready(mid)
  else
    if not former then leave_ready(mid) end
    to_due(mid, tonumber(not_before))
  end
  return 'moved', former and string.format('%.0f', stored(former, LATEST_MS, 0)) or ''
end

if call.refused then return {'closed'} end
if call.kept then
--@include _recorded
  return kept_words(call.kept)
end
local words = {}
for i = 4, #ARGV, 3 do
  words[#words + 1], words[#words + 2] = reschedule(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
save_lines()
record_call(call, table.concat(words, '\31') .. '\30')
return words
