#!lua flags=allow-oom
--[[
ticks_sent: delete the messages of ticks that clients have sent to their partitions, and return the other kept messages.

KEYS
  ticks:hash tick_log:list tick_sends:hash
ARGV
  limit  messages to return, 0-100
  then three per sent message, 100 of them at most: name of the schedule, number of the message, '' or 'full': it was not
  sent, because the line of its key is full
RETURNS  {per kept message, up to 1 MiB and one message more: name, number, 'enqueued' | 'waits' | 'replaced',
         mid, message}
COST     O(kept messages)
WRITES   nothing for a number that isn't kept, or no longer; a kept message that can't be read is deleted
]]
local ticks, tick_log, tick_sends = unpack(KEYS)
local limit = unpack(ARGV, 1, 1)

--@include shared/_arguments
keys_are(3)
arguments_are(1, 0, 100, 3)
limit = whole('limit', limit, 0, 100)
for i = 2, #ARGV, 3 do
  whole('a number', ARGV[i + 1], 0, 9e15)
  one_of('an outcome', ARGV[i + 2], '', 'full')
end
--@include _stored
--@include _text
--@include _schedules
probe('LLEN', tick_log)
probe('HLEN', ticks, tick_sends)

-- A client must be able to name the message in its report; another program may have written anything.
local function parts_of(name, text)
  local number, action, mid, message = string.match(text or '', '^([1-9]%d*)\31(%l+)\31([^\31]*)\31(.*)$')
  if number and #number <= 15 and is_text(name) then return number, action, mid, message end
end

for i = 2, #ARGV, 3 do
  local name, number, outcome = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local kept_number, _, mid = parts_of(name, redis.call('HGET', tick_sends, name))
  if kept_number == number then
    redis.call('HDEL', tick_sends, name)
    local known = schedule_state(name)
    if outcome == 'full' and known.last then log_tick(name, known.last, 0, 'full', 0, mid) end
  end
end
local kept, nbytes, cursor = {}, 0, '0'
repeat
  local reply = redis.call('HSCAN', tick_sends, cursor, 'COUNT', 20)
  cursor = reply[1]
  for i = 1, #reply[2], 2 do
    local name = reply[2][i]
    local number, action, mid, message = parts_of(name, reply[2][i + 1])
    if not number then
      redis.call('HDEL', tick_sends, name)
    elseif #kept < 5 * limit and nbytes <= 1048576 then
      for _, value in ipairs({name, number, action, mid, message}) do kept[#kept + 1] = value end
      nbytes = nbytes + #message
    end
  end
until cursor == '0' or #kept >= 5 * limit or nbytes > 1048576
return kept
