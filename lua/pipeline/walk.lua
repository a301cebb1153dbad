#!lua flags=no-writes
--[[
walk: count entries of a stream from one place on; beside it, how many there were and are at that very moment.

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

count = tonumber(count)
if not count or count < 1 or count > 2000 then return redis.error_reply('ERR walk takes a count of 1-2000') end
if redis.call('EXISTS', events) == 0 then return {0, 0, 0, '0-0'} end

local facts = {}
local told = redis.call('XINFO', 'STREAM', events)
for i = 1, #told, 2 do facts[told[i]] = told[i + 1] end
local page = redis.call('XRANGE', events, '(' .. after, upto, 'COUNT', count)
return {facts['entries-added'], facts['length'], #page, #page > 0 and page[#page][1] or '0-0'}
