#!lua
--[[
send: messages, all or none; their ids are in their order, also within one microsecond.

KEYS
  messages:zset attributes:hash
ARGV
  now       epoch microseconds, or '' for the server's clock
  delay     seconds until they are visible, '' = the queue's
  channel   to publish the number of messages on, once for each message sent; '' = none
  then two per message: 22 random characters, body
RETURNS  {'ok', id...} | {'not_found'} | {'too_long', the queue's maxsize}
COST     O(messages sent x log messages)
WRITES   messages and attributes; nothing when one of them is refused
]]
local messages, attributes = unpack(KEYS)
local now, delay, channel = unpack(ARGV, 1, 3)

-- The usual call passes without the functions that say what is wrong with one.
local find = string.find
if not (#KEYS == 2 and #ARGV == 5 and now == '' and delay == '' and channel == ''
  and #ARGV[4] == 22 and not find(ARGV[4], '%W')) then
--@include shared/_arguments
keys_are(2)
arguments_are(3, 1, 1000, 2)
whole_or_none('now', now, 0, 9007199254740991)
whole_or_none('delay', delay, 0, 9999999)
for i = 4, #ARGV, 2 do
  if #ARGV[i] ~= 22 or string.find(ARGV[i], '%W') then refuse('the end of an id', '22 letters and digits') end
end
--@include _channel
check_channel(channel)
end
delay = tonumber(delay)
--@include _clock
read_clock(now)
--@include _settings

local DIGITS, highest, prefix = '0123456789abcdefghijklmnopqrstuvwxyz', -1, ''
local function base36(number)
  local text = ''
  while number > 0 do
    local digit = number % 36
    text, number = string.sub(DIGITS, digit + 1, digit + 1) .. text, (number - digit) / 36
  end
  return text
end

-- Only the last two digits differ from one message to the next, as a rule.
local function minted(at_us, random)
  local low = at_us % 1296
  if at_us - low ~= highest then highest, prefix = at_us - low, base36((at_us - low) / 1296) end
  local first, last = math.floor(low / 36), low % 36
  return prefix .. string.sub(DIGITS, first + 1, first + 1) .. string.sub(DIGITS, last + 1, last + 1) .. random
end

if not exists then return {'not_found'} end
local maxsize = whole_part(maxsize_text, 65536)
for i = 5, #ARGV, 2 do
  if maxsize ~= -1 and #ARGV[i] > maxsize then return {'too_long', maxsize} end
end
local before = channel ~= '' and redis.call('ZCARD', messages)

local reply, scored, bodies = {'ok'}, {}, {}
local visible_at = string.format('%.0f', now_ms + 1000 * (delay or whole_part(delay_text, 0)))
for i = 4, #ARGV, 2 do
  local id = minted(now_us + i / 2 - 2, ARGV[i])
  reply[i / 2] = id
  scored[i - 3], scored[i - 2] = visible_at, id
  bodies[i - 3], bodies[i - 2] = id, ARGV[i + 1]
end
local n = #bodies
bodies[n + 1], bodies[n + 2] = 'totalsent', added(totalsent_text, #reply - 1)
redis.call('ZADD', messages, unpack(scored))
redis.call('HSET', attributes, unpack(bodies))
for sent = 1, channel == '' and 0 or #reply - 1 do
  redis.call('PUBLISH', channel, string.format('%.0f', before + sent))
end
return reply
