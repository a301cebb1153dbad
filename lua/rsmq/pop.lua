#!lua flags=allow-oom
--[[
pop: remove the first visible messages and hand them out; who crashes now has lost them.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  limit   so many at most
RETURNS  as receive
COST     O(limit x log messages), and up to 1000 phantoms
WRITES   nothing when nothing is visible, but that phantoms are removed
]]
local messages, attributes = unpack(KEYS)
local now, limit = unpack(ARGV)

--@include _clock
--@include _settings

if not exists then return {'not_found'} end
limit = tonumber(limit)
local reply, fields = {'ok'}, {}

--@include _visible

if nothing then return nothing end
for i, id in ipairs(ids) do
  fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
end
redis.call('ZREM', messages, unpack(ids))
redis.call('HDEL', attributes, unpack(fields))
redis.call('HSET', attributes, 'totalrecv', added(totalrecv_text, taken))
return reply
