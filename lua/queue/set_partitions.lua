#!lua
--[[
set_partitions: replace the map of a queue's partitions, unless another client has replaced it.

KEYS
  partitions:hash
ARGV
  known  the map that the caller has read, '' = none
  map    the new map, '' = delete it: epochs, oldest first, joined by ';', each 'number,first,count', followed by ',d'
         and a time in epoch seconds once it is drained. Numbers rise, no partition has two epochs,
         an epoch has at most 256 partitions, and all together have 4,096
RETURNS  {'set', map} | {'changed', the map that is there}
COST     O(epochs)
WRITES   nothing for 'changed'
]]
local partitions = unpack(KEYS)
local known, map = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(2)
if #map > 16384 then refuse('map', '16 KiB at most') end
local last, beyond, size = -1, 0, 0
for part in string.gmatch(map == '' and '' or map .. ';', '([^;]*);') do
  local number, first, count, drained = string.match(part, '^(%d+),(%d+),(%d+)(.*)$')
  number, first, count = tonumber(number), tonumber(first), tonumber(count)
  if not number or #part > 40 or number <= last or first < beyond or not (drained == '' or string.find(drained, '^,d%d+$'))
    or (number == 0) ~= (count == 0) or count > 256 or size + count > 4096 then refuse('map', 'epochs as the script describes') end
  last, beyond, size = number, first + count, size + count
end
local kept = redis.call('HGET', partitions, 'map') or ''
if kept == map then return {'set', map} end
if kept ~= known then return {'changed', kept} end
if map == '' then redis.call('DEL', partitions) else redis.call('HSET', partitions, 'map', map) end
return {'set', map}
