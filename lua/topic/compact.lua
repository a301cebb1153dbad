#!lua
--[[
compact: do one step of a compaction, which keeps the latest message of each key, and all messages without a key.

KEYS
  log:stream base:stream clean:stream newest:hash meta:hash
ARGV
  now    epoch ms, or '' for the server's clock
  begin  1: begin a compaction up to the last message, unless one is under way
  limit  messages looked at, 1-1000
RETURNS  {1 while it is under way, else 0; compacted up to}
COST     O(limit)
WRITES   nothing if no message needs compaction
]]
local log, base, clean, newest, meta = unpack(KEYS)
local now, begin, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(3)
whole_or_none('now', now, 0, 253402300799999)
one_of('begin', begin, '0', '1')
limit = whole('limit', limit, 1, 1000)
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _compact

probe('XLEN', log, base, clean)
probe('HLEN', newest)
if begin == '1' then begin_compaction() end
if state.phase > 0 then compaction_step(limit) end
return {state.phase > 0 and 1 or 0, state.base_to}
