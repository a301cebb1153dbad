#!lua flags=allow-oom
--[[
trim: drop messages beyond the limits, or all below an index; at most 10,000 indexes in one call.

KEYS
  log:stream base:stream marks:zset meta:hash
ARGV
  now     epoch ms, or '' for the server's clock
  before  drop messages below this index, '' = by the limits
RETURNS  {first index kept, 1 when there is more to drop}
COST     O(messages dropped)
WRITES   nothing if all messages are within the limits
]]
local log, base, marks, meta = unpack(KEYS)
local now, before = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(2)
whole_or_none('now', now, 0, 253402300799999)
before = whole_or_none('before', before, 0, 9007199254740991)
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _find
--@include _retain

probe('XLEN', log, base)
probe('ZCARD', marks)
state.aged_at = 0
local from = before and math.min(before, state.last + 1) or allowed_from()
drop_below(from)
return {state.first, state.first < from and 1 or 0}
