#!lua flags=no-writes
--[[
find: find the first message appended at a time or later.

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

--@include shared/_arguments
keys_are(3)
arguments_are(1)
time = whole('time', time, -9007199254740991, 9007199254740991)
--@include _state
--@include _entries
--@include _find

return {index_at(time)}
