#!lua
--[[
take: count a start, or return when the next start is free. No span of time has more starts than the rate allows.

A rejected caller that would wait is given a turn, one share of the rate after the previous turn. Turns aren't reserved.
If the clock steps back by up to 60 s, the latest start is used as the time; after a larger step, the starts before it
are forgotten.

KEYS
  ring:list state:hash settings:hash last_call:string
ARGV
  caller  random id of the caller, as in the name of last_call
  number  of this call, counted up by the caller
  now  epoch ms, or '' for the server's clock
  cost  how many starts to count
  most  number of starts that the rate allows
  span_ms  period of the rate
  margin_ms  by which the span is longer
  patience_ms  turns later than this are not given
RETURNS  {'ok', epoch ms of the start, most, span_ms}; {'wait' or 'held', ms until the next start is free, ms until the
         turn, most, span_ms}; {'never', most, span_ms, size of the burst}; {'closed'}
COST     O(cost) for a start, O(1) for a refusal
WRITES   nothing for a refusal without a turn, or when memory is full
]]
local ring, state, settings, last_call = unpack(KEYS)
local caller, number, now, cost, most, span_ms, margin_ms, patience_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(8)
--@include shared/_caller
number = checked_number(caller, number)
whole_or_none('now', now, 0, 253402300799999)
cost = whole('cost', cost, 1, 1000000000)
most = whole('most', most, 1, 1000000000)
span_ms = whole('span_ms', span_ms, 1, 2592000000)
margin_ms = whole('margin_ms', margin_ms, 0, 2592000000)
patience_ms = whole('patience_ms', patience_ms, 0, 3600000)
--@include shared/_call
local call = open_call(last_call, number)
--@include shared/_clock
--@include _stored
--@include _rate
--@include _in_force
--@include _held
--@include _keep_state

local STEP_BACK_MS, MAX_TURN_MS = 60000, 3600000
local clock_ms = time_ms(now)
most, span_ms = in_force(most, span_ms)
local window_ms = span_ms + margin_ms
local hold, hold_ms, advice, moment, started_at, idle_at = unpack(
  redis.call('HMGET', state, 'hold', 'hold_ms', 'advice', 'moment', 'started_at', 'idle_at'))
local newest, started = stored(redis.call('LINDEX', ring, 0)), stored(started_at)

if call.refused then return {'closed'} end
if call.kept then
  local at, kept_most, kept_span = string.match(call.kept, '^(%d+) (%d+) (%d+)$')
  if not at then return redis.error_reply('ERR the record of this call is damaged') end
  return {'ok', tonumber(at), tonumber(kept_most), tonumber(kept_span)}
end
if cost > at_once(most) then return {'never', most, span_ms, at_once(most)} end

-- If the rate was changed across IN_RING, the last start in the other form blocks one window.
local by_ring = most <= IN_RING
local last, other = newest, started
if not by_ring then last, other = started, newest end
local now_ms, forgotten = clock_ms, false
if last and last > clock_ms then
  if last - clock_ms <= STEP_BACK_MS then now_ms = last else forgotten = true end
end
local free_at = 0
if other and other <= clock_ms + STEP_BACK_MS then free_at = other + window_ms + 1 end
local moved_us
if by_ring then
  -- Times are cut to ms, so a start exactly one window ago may be less than that ago.
  local nth = not forgotten and stored(redis.call('LINDEX', ring, most - cost))
  if nth then free_at = math.max(free_at, nth + window_ms + 1) end
else
  moment = not forgotten and stored(moment) or 0
  if moment <= now_ms * 1000 then moment, idle_at = now_ms * 1000, now_ms end
  moved_us = moment + spread_us(cost, most, window_ms)
  free_at = math.max(free_at, math.ceil((moved_us - spread_us(at_once(most), most, window_ms)) / 1000))
end

local held = held_until(hold, hold_ms, clock_ms)
if free_at > now_ms or held > clock_ms then
  local word = held >= free_at and 'held' or 'wait'
  free_at = math.max(free_at, held)
  -- A little early: a late caller leaves its share unused.
  local turn = math.max(stored(advice) or 0, free_at) + 0.95 * cost * window_ms / most
  turn = math.min(turn, clock_ms + MAX_TURN_MS)
  local turn_ms = math.ceil(turn - clock_ms)
  if turn_ms <= patience_ms then
    redis.call('HSET', state, 'advice', string.format('%.3f', turn))
    keep_state(turn_ms + window_ms)
  end
  return {word, math.ceil(free_at - clock_ms), turn_ms, most, span_ms}
end

if by_ring then
  if forgotten then redis.call('DEL', ring) end
  local left, starts = cost, {}
  for i = 1, math.min(cost, 1000) do starts[i] = text(now_ms) end
  while left > 0 do
    local count = math.min(left, 1000)
    redis.call('LPUSH', ring, unpack(starts, 1, count))
    left = left - count
  end
  redis.call('LTRIM', ring, 0, most - 1)
  redis.call('PEXPIRE', ring, text(window_ms + 1000))
else
  redis.call('HSET', state, 'moment', text(moved_us), 'started_at', text(now_ms), 'idle_at', text(stored(idle_at) or 0))
  keep_state(window_ms + 1000)
end
record_call(call, text(now_ms) .. ' ' .. text(most) .. ' ' .. text(span_ms))
return {'ok', now_ms, most, span_ms}
