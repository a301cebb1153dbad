#!lua
--[[
limits: set what a topic keeps. A setting that is '' stays as it is.

KEYS
  meta:hash
ARGV
  max_age       keep messages for so many ms, 0 = for ever
  max_count     keep so many, 0 = all
  max_bytes     keep about so many bytes of content, keys and headers, 0 = all
  compact       1: keep the newest message of each key only, after a while; 0: all
  tombstone_ms  how long a compaction keeps a key's deletion
RETURNS  {'ok'}; {'both'}: compaction goes with max_age only
COST     O(1)
WRITES   meta; nothing when refused
]]
local meta = unpack(KEYS)
local max_age, max_count, max_bytes, compact, tombstone_ms = unpack(ARGV)

local names = {'max_age', 'max_count', 'max_bytes', 'compact', 'tombstone_ms'}
local values, changed = redis.call('HMGET', meta, unpack(names)), {}
for i, name in ipairs(names) do
  if ARGV[i] ~= '' then
    if not string.match(ARGV[i], '^%d+$') then return redis.error_reply('ERR limits are whole numbers') end
    values[i] = ARGV[i]
    changed[#changed + 1], changed[#changed + 2] = name, ARGV[i]
  end
end
local function is_set(i) return values[i] and values[i] ~= '0' end
if is_set(4) and (is_set(2) or is_set(3)) then return {'both'} end
if #changed > 0 then redis.call('HSET', meta, unpack(changed)) end
return {'ok'}
