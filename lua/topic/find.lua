#!lua flags=no-writes
--[[
find: the first message appended at a time or later.

KEYS
  log:stream base:stream meta:hash
ARGV
  time  epoch ms
RETURNS  {its index; one after the last when there is none}
COST     O(log messages)
WRITES   nothing
]]
local log, base, meta = unpack(KEYS)
local time = unpack(ARGV)
local now = '0'

--@include _state
--@include _entries
--@include _find

time = tonumber(time)
if not time then return redis.error_reply('ERR time must be epoch ms') end
return {index_at(time)}
