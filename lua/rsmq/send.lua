#!lua
--[[
send: send messages, all or none. Their ids sort in their order, even within one microsecond.

KEYS
  messages:zset attributes:hash
ARGV
  now       epoch microseconds, or '' for the server's clock
  delay     seconds until they are visible, '' = the queue's setting
  channel   to publish the number of messages on, once for each message sent; '' = none
  then two per message: 22 random characters, body
RETURNS  {'ok', id...} | {'not_found'} | {'too_long', the queue's maxsize}
COST     O(messages sent x log messages)
WRITES   messages and attributes; nothing if one message is rejected
]]
local messages, attributes = unpack(KEYS)
local now, delay, channel = unpack(ARGV, 1, 3)

local find, call = string.find, redis.call
-- A small whole number, written as usual.
local function is_plain(text) return text and #text <= 15 and find(text, '^%d+$') end

-- One message to a queue whose settings are written as usual. The rest of the script handles all other calls and
-- queues.
if #ARGV == 5 and now == '' and delay == '' and channel == '' and #KEYS == 2 and #ARGV[4] == 22 and not find(ARGV[4], '%W') then
  local time = call('TIME')
  local settings = call('HMGET', attributes, 'vt', 'delay', 'maxsize', 'totalsent')
  local delay_s, maxsize, total = settings[2], settings[3], settings[4]
  if settings[1] and is_plain(delay_s) and is_plain(maxsize) and is_plain(total) and #ARGV[5] <= tonumber(maxsize) then
    -- The time in ten digits of base 36: the upper five, the lower five.
    local floor, sub, base36, at_us = math.floor, string.sub, '0123456789abcdefghijklmnopqrstuvwxyz', time[1] * 1000000 + time[2]
    local upper, high, low = floor(at_us / 60466176), '', ''
    local lower = at_us - upper * 60466176
    for _ = 1, 5 do
      local upper_digit, lower_digit = upper % 36, lower % 36
      upper, lower = (upper - upper_digit) / 36, (lower - lower_digit) / 36
      high, low = sub(base36, upper_digit + 1, upper_digit + 1) .. high, sub(base36, lower_digit + 1, lower_digit + 1) .. low
    end
    local id = high .. low .. ARGV[4]
    call('ZADD', messages, floor(at_us / 1000) + 1000 * delay_s, id)
    call('HSET', attributes, id, ARGV[5], 'totalsent', string.format('%d', total + 1))
    return {'ok', id}
  end
end

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
