#!lua
--[[
compact: one step of a compaction, which keeps the newest message of each key, and all without a key.

KEYS
  log:stream base:stream clean:stream newest:hash meta:hash
ARGV
  now    epoch ms, or '' for the server's clock
  begin  1: begin a compaction up to the last message, unless one is under way
  limit  messages looked at, 1-1000
RETURNS  {1 while it is under way, else 0; compacted up to}
COST     O(limit)
WRITES   nothing when there is nothing to compact
]]
local log, base, clean, newest, meta = unpack(KEYS)
local now, begin, limit = unpack(ARGV)

--@include _state
--@include _entries
--@include _compact

limit = tonumber(limit)
if not limit or limit < 1 or limit > 1000 then return redis.error_reply('ERR limit must be 1-1000') end
if begin == '1' then begin_compaction() end
if state.phase > 0 then compaction_step(limit) end
return {state.phase > 0 and 1 or 0, state.base_to}
