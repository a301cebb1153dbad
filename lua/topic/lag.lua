#!lua flags=no-writes
--[[
lag: return the position of a group, and facts about the messages after it.

KEYS
  log:stream base:stream meta:hash group:hash held:zset leases:zset
ARGV
  now  epoch ms, or '' for the server's clock
RETURNS  {'ok', settled index, last index handed out, last index of the topic, first index of the topic, batches
         held, of these with an ended lease, age in ms of the oldest message not settled, paused, out of range,
         skipped so far}; {'missing'}
COST     O(log messages)
WRITES   nothing
]]
local log, base, meta, group, held, leases = unpack(KEYS)
local now = unpack(ARGV)

--@include shared/_arguments
keys_are(6)
arguments_are(1)
whole_or_none('now', now, 0, 253402300799999)
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _find
--@include _cursor
--@include _settled

if not cursor then return {'missing'} end
local oldest = entries(settled() + 1, state.last, 1)[1]
return {
  'ok', settled(), cursor, state.last, state.first, redis.call('ZCARD', held),
  redis.call('ZCOUNT', leases, '-inf', now_ms), oldest and math.max(0, now_ms - at_of(oldest)) or 0,
  paused == '1' and 1 or 0, out_of_range or '', tonumber(skipped_before) or 0,
}
