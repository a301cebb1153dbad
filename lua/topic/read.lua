#!lua flags=no-writes
--[[
read: return messages by index, without moving any group.

KEYS
  log:stream base:stream meta:hash
ARGV
  from   the lowest index
  upto   the highest
  count  messages at most, 1-1000; about 256 KiB in all
RETURNS  {first index of the topic, last index, compacted up to, messages as XRANGE gives them}
COST     O(messages)
WRITES   nothing
]]
local log, base, meta = unpack(KEYS)
local from, upto, count = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
from = whole('from', from, -9007199254740991, 9007199254740991)
upto = whole('upto', upto, -9007199254740991, 9007199254740991)
count = whole('count', count, 1, 1000)
--@include _state
--@include _entries

return {state.first, state.last, state.base_to, entries(from, upto, count, 262144)}
