#!lua
--[[
settle: give back the unused part of a start, as if it had never been taken.

KEYS
  ring:list state:hash last_call:string
ARGV
  caller  random id of the caller, as in the name of last_call
  number  of this call, counted up by the caller
  started  epoch ms, as take returned it
  unused  how many of its starts to take back
  most  as take returned it
  span_ms  as take returned it
  margin_ms  by which the span is longer
RETURNS  {'ok', how many were taken back: fewer if the limit already allows as much}; {'closed'}
COST     O(length of the ring)
WRITES   nothing when the call is refused
]]
local ring, state, last_call = unpack(KEYS)
local caller, number, started, unused, most, span_ms, margin_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(7)
--@include shared/_caller
number = checked_number(caller, number)
started = whole('started', started, 0, 253402300799999)
unused = whole('unused', unused, 1, 1000000000)
most = whole('most', most, 1, 1000000000)
span_ms = whole('span_ms', span_ms, 1, 2592000000)
margin_ms = whole('margin_ms', margin_ms, 0, 2592000000)
--@include shared/_call
local call = open_call(last_call, number)
--@include _stored
--@include _rate
redis.call('LLEN', ring)
local moment, idle_at = unpack(redis.call('HMGET', state, 'moment', 'idle_at'))
moment, idle_at = stored(moment), stored(idle_at)

if call.refused then return {'closed'} end
if call.kept then return {'ok', tonumber(call.kept) or 0} end

local back = 0
if most <= IN_RING then
  back = redis.call('LREM', ring, unused, text(started))
elseif moment and idle_at and idle_at <= started then
  -- The limit wasn't idle since then, so each later start was counted after this start.
  back = unused
  redis.call('HSET', state, 'moment', text(math.max(0, moment - spread_us(unused, most, span_ms + margin_ms))))
end
record_call(call, text(back))
return {'ok', back}
