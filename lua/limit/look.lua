#!lua flags=no-writes
--[[
look: return how much of a limit is used, and by which holders.

KEYS
  ring:list state:hash settings:hash holders:zset
ARGV
  now  epoch ms, or '' for the server's clock
  most  starts of the rate, or slots
  span_ms  of the rate; '' for slots
  margin_ms  by which the span is longer
RETURNS  {most, span_ms (0 for slots), whether set at the server, used, ms until the end of a hold, ms until the last turn
         that was given, then per holder, at most 1,000: token, ms until its lease ends}
COST     O(log ring + holders)
WRITES   nothing
]]
local ring, state, settings, holders = unpack(KEYS)
local now, most, span_ms, margin_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(4)
whole_or_none('now', now, 0, 253402300799999)
most = whole('most', most, 1, 1000000000)
span_ms = whole_or_none('span_ms', span_ms, 1, 2592000000)
margin_ms = whole('margin_ms', margin_ms, 0, 2592000000)
--@include shared/_clock
--@include _stored
--@include _rate
--@include _in_force
--@include _held

local now_ms = time_ms(now)
local set = redis.call('HLEN', settings) > 0
most, span_ms = in_force(most, span_ms)
local hold, hold_ms, advice, moment = unpack(redis.call('HMGET', state, 'hold', 'hold_ms', 'advice', 'moment'))
local used = redis.call('ZCOUNT', holders, '(' .. text(now_ms), '+inf')
local length = redis.call('LLEN', ring)
if span_ms and most <= IN_RING then
  local since, low = now_ms - span_ms - margin_ms, 0
  while low < length do
    local middle = math.floor((low + length) / 2)
    if (stored(redis.call('LINDEX', ring, middle)) or 0) >= since then low = middle + 1 else length = middle end
  end
  used = low
elseif span_ms then
  -- Used starts of the burst, which is a twentieth of the rate.
  local behind_us = math.max(0, (stored(moment) or 0) - now_ms * 1000)
  used = math.min(at_once(most), math.ceil(behind_us / spread_us(1, most, span_ms + margin_ms)))
end
local reply = {
  most, span_ms or 0, set and 1 or 0, used, math.max(0, math.ceil(held_until(hold, hold_ms, now_ms) - now_ms)),
  math.max(0, math.ceil((stored(advice) or 0) - now_ms)),
}
local held = redis.call('ZRANGE', holders, '(' .. text(now_ms), '+inf', 'BYSCORE', 'LIMIT', 0, 1000, 'WITHSCORES')
for i = 1, #held, 2 do
  reply[#reply + 1] = held[i]
  reply[#reply + 1] = math.ceil(tonumber(held[i + 1]) - now_ms)
end
return reply
