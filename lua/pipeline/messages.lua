#!lua flags=no-writes
--[[
messages: return one page of a queue's live messages, each with its status.

KEYS
  messages:hash locks:hash backoffs:hash nattempts:hash ncrashes:hash requeue:hash done:set meta:hash
  events:stream
ARGV
  cursor  '0' first, then the cursor that the previous call returned
  count   about how many, 1-2000; a small queue is returned whole
  contents_too  '1' = with contents, '' = with their lengths
  now     epoch ms, or '' for the server's clock
RETURNS  {next cursor, '0' at the end, then lists of the same length: mids, statuses, attempts, crashes,
         not before, locked until, contents or lengths}; false or '' for missing values. A mid may be
         returned twice; a mid that was always there is returned at least once
COST     O(count)
WRITES   nothing
]]
local messages, locks, backoffs, nattempts, ncrashes, requeue, done, meta, events = unpack(KEYS)
local cursor, count, contents_too, now = unpack(ARGV)

--@include shared/_arguments
keys_are(9)
arguments_are(4)
one_of('contents_too', contents_too, '', '1')
--@include queue/_stored
--@include shared/_clock
--@include queue/_clock
read_clock(now)
--@include queue/_status

count = whole('count', count, 1, 2000)
local reply = redis.call('HSCAN', messages, cursor, 'COUNT', count)
local pairs_of, mids, contents = reply[2], {}, {}
for i = 1, #pairs_of, 2 do
  mids[#mids + 1] = pairs_of[i]
  contents[#contents + 1] = contents_too == '1' and pairs_of[i + 1] or #pairs_of[i + 1]
end

-- Maximum values of one command on Lua's stack.
local PER_COMMAND = 1000
local function of_all(command, key)
  local values = {}
  for from = 1, #mids, PER_COMMAND do
    local some = redis.call(command, key, unpack(mids, from, math.min(#mids, from + PER_COMMAND - 1)))
    for i = 1, #some do values[#values + 1] = some[i] end
  end
  return values
end

local locked, delayed, done_ones = of_all('HMGET', locks), of_all('HMGET', backoffs), of_all('SMISMEMBER', done)
local waiting, attempts, words = of_all('HMGET', requeue), of_all('HMGET', nattempts), {}
for i = 1, #mids do
  -- The first attempt is written when it ends in anything but done.
  attempts[i] = attempts[i] or (locked[i] or done_ones[i] == 1) and '1'
  words[i] = word_of(done_ones[i] == 1, waiting[i], locked[i], delayed[i])
end
return {reply[1], mids, words, attempts, of_all('HMGET', ncrashes), delayed, locked, contents}
