#!lua
--[[
limits: set what a topic keeps. A setting that is '' stays as it is.

KEYS
  meta:hash
ARGV
  max_age       how many ms to keep messages, 0 = no limit
  max_count     how many messages to keep, 0 = all
  max_bytes     about how many bytes of content, keys and headers to keep, 0 = all
  compact       1: keep the newest message of each key only, after a while; 0: all
  tombstone_ms  how long a compaction keeps a key's deletion
RETURNS  {'ok'}; {'both'}: compaction allows only max_age
COST     O(1)
WRITES   meta; nothing when refused
]]
local meta = unpack(KEYS)
local max_age, max_count, max_bytes, compact, tombstone_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(5)
whole_or_none('max_age', max_age, 0, 9007199254740000)
whole_or_none('max_count', max_count, 0, 9007199254740000)
whole_or_none('max_bytes', max_bytes, 0, 9007199254740000)
one_of('compact', compact, '', '0', '1')
whole_or_none('tombstone_ms', tombstone_ms, 0, 9007199254740000)

local names = {'max_age', 'max_count', 'max_bytes', 'compact', 'tombstone_ms'}
local values, changed = redis.call('HMGET', meta, unpack(names)), {}
for i, name in ipairs(names) do
  if ARGV[i] ~= '' then
    values[i] = ARGV[i]
    changed[#changed + 1], changed[#changed + 2] = name, ARGV[i]
  end
end
local function is_set(i) return values[i] and values[i] ~= '0' end
if is_set(4) and (is_set(2) or is_set(3)) then return {'both'} end
if #changed > 0 then redis.call('HSET', meta, unpack(changed)) end
return {'ok'}
