#!lua flags=no-writes
--[[
describe: return the size and the settings of a topic.

KEYS
  log:stream base:stream marks:zset meta:hash groups:set
ARGV
  now  epoch ms, or '' for the server's clock
RETURNS  {first index, last index, messages, bytes (to 64 KiB), appended at: oldest, newest, compacted up to,
         step of a compaction, max_age ms, max_count, max_bytes, compacts, tombstone ms, now, groups}: 0 = none
COST     O(groups)
WRITES   nothing
]]
local log, base, marks, meta, groups = unpack(KEYS)
local now = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(1)
whole_or_none('now', now, 0, 253402300799999)
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _find

-- While a compaction trims the log, it still holds messages that count in the compacted part.
local twice = 0
local lowest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
if lowest then twice = math.max(0, math.min(state.base_to, state.last) - index_of(lowest) + 1) end
local mark = redis.call('ZRANGE', marks, 0, 0, 'WITHSCORES')
local oldest = entries(state.first, state.last, 1)[1]
return {
  state.first, state.last, redis.call('XLEN', base) + redis.call('XLEN', log) - twice,
  math.max(0, state.bytes - math.max(0, tonumber(mark[2]) or state.bytes)), oldest and at_of(oldest) or 0, state.last_at, state.base_to,
  state.phase, state.max_age, state.max_count, state.max_bytes, state.compact, state.tombstone_ms, now_ms,
  redis.call('SMEMBERS', groups),
}
