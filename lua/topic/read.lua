#!lua flags=no-writes
--[[
read: messages by index, for nobody in particular: no position moves.

KEYS
  log:stream base:stream meta:hash
ARGV
  from   the lowest index
  upto   the highest
  count  messages at most, 1-1000; about 4 MiB in all
RETURNS  {first index of the topic, last index, compacted up to, messages as XRANGE gives them}
COST     O(messages)
WRITES   nothing
]]
local log, base, meta = unpack(KEYS)
local from, upto, count = unpack(ARGV)
local now = '0'

--@include _state
--@include _entries

from, upto, count = tonumber(from), tonumber(upto), tonumber(count)
if not from or not upto or not count or count < 1 or count > 1000 then
  return redis.error_reply('ERR read takes two indexes and a count of 1-1000')
end
return {state.first, state.last, state.base_to, entries(from, upto, count)}
