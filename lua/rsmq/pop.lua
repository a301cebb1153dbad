#!lua flags=allow-oom
--[[
pop: remove the first visible messages and hand them out; a client that crashes now loses them.

KEYS
  messages:zset attributes:hash
ARGV
  now     epoch microseconds, or '' for the server's clock
  limit   maximum number of messages
RETURNS  as receive
COST     O(limit x log messages), and up to 1000 phantoms
WRITES   only removed phantoms if no message is visible
]]
local messages, attributes = unpack(KEYS)
local now, limit = unpack(ARGV)

-- The usual call passes without the functions that describe errors.
local find = string.find
if not (#KEYS == 2 and #ARGV == 2 and now == '' and #limit <= 3 and find(limit, '^[1-9]%d*$')) then
--@include shared/_arguments
keys_are(2)
arguments_are(2)
whole_or_none('now', now, 0, 9007199254740991)
whole('limit', limit, 1, 1000)
end
limit = tonumber(limit)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
--@include _visible

if not exists then return {'not_found'} end
local reply, fields = {'ok'}, {}
local visible, instead = find_visible(limit, reply)
if not visible then return instead end
for i, id in ipairs(visible.ids) do
  fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
end
redis.call('ZREM', messages, unpack(visible.ids))
redis.call('HDEL', attributes, unpack(fields))
redis.call('HSET', attributes, 'totalrecv', added(totalrecv_text, #visible.ids))
return reply
