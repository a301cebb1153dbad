#!lua flags=allow-oom
--[[
purge: remove messages, including hidden messages; the queue, its settings and its totals stay.

KEYS
  messages:zset attributes:hash
ARGV
  limit   maximum number of messages, up to 1000
RETURNS  {'ok', how many} | {'not_found'}
COST     O(limit x log messages)
WRITES   messages and attributes; nothing if the queue doesn't exist
]]
local messages, attributes = unpack(KEYS)
local limit = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(1)
limit = whole('limit', limit, 1, 1000)
--@include _settings
--@include _reserved

if not exists then return {'not_found'} end
local ids = redis.call('ZRANGE', messages, 0, limit - 1)
if #ids == 0 then return {'ok', 0} end

local fields = {}
for i, id in ipairs(ids) do
  fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = is_setting(id) and '' or id, id .. ':rc', id .. ':fr'
end
redis.call('ZREM', messages, unpack(ids))
redis.call('HDEL', attributes, unpack(fields))
return {'ok', #ids}
