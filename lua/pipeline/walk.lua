#!lua flags=no-writes
--[[
walk: count entries of a stream after a position; also return the stream's totals at the same moment.

KEYS
  events:stream
ARGV
  after  entry id, excluded
  upto   entry id, included; '+' for the last
  count  entries at most, 1-2000
RETURNS  {entries ever added, entries there now, entries walked, id of the last of them, '0-0' for none}
COST     O(count)
WRITES   nothing
]]
local events = unpack(KEYS)
local after, upto, count = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(3)
count = whole('count', count, 1, 2000)
if not string.find(after, '^%d+%-?%d*$') then refuse('after', 'the id of an entry') end
if upto ~= '+' and not string.find(upto, '^%d+%-?%d*$') then refuse('upto', 'the id of an entry, or +') end
if redis.call('EXISTS', events) == 0 then return {0, 0, 0, '0-0'} end

local facts = {}
local told = redis.call('XINFO', 'STREAM', events)
for i = 1, #told, 2 do facts[told[i]] = told[i + 1] end
local page = redis.call('XRANGE', events, '(' .. after, upto, 'COUNT', count)
return {facts['entries-added'], facts['length'], #page, #page > 0 and page[#page][1] or '0-0'}
