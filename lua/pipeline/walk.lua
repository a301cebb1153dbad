#!lua flags=no-writes
--[[
walk: count entries of a stream from one place on; beside it, what the stream is at that very moment.

KEYS
  events:stream
ARGV
  after  entry id, excluded
  upto   entry id, included; '+' for the last
  count  entries at most, 1-2000
RETURNS  {entries ever added, entries there now, first id there, last id ever added, entries walked,
         id of the first of them, id of the last of them}: ids are '0-0' for what isn't there
COST     O(count)
WRITES   nothing
]]
local events = unpack(KEYS)
local after, upto, count = unpack(ARGV)

count = tonumber(count)
if not count or count < 1 or count > 2000 then return redis.error_reply('ERR walk takes a count of 1-2000') end
if redis.call('EXISTS', events) == 0 then return {0, 0, '0-0', '0-0', 0, '0-0', '0-0'} end

local facts = {}
local told = redis.call('XINFO', 'STREAM', events)
for i = 1, #told, 2 do facts[told[i]] = told[i + 1] end
local first = facts['first-entry'] and facts['first-entry'][1] or '0-0'
local page = redis.call('XRANGE', events, '(' .. after, upto, 'COUNT', count)
return {
  facts['entries-added'], facts['length'], first, facts['last-generated-id'],
  #page, #page > 0 and page[1][1] or '0-0', #page > 0 and page[#page][1] or '0-0',
}
