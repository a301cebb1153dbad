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
--@include _count

if not exists then return {'not_found'} end
limit = tonumber(limit)
local reply = {'ok'}

local function take(id, body)
  local received, first_at = count(id .. ':rc', 1), string.format('%.0f', now_ms)
  if received > 1 then first_at = redis.call('HGET', attributes, id .. ':fr') or '0' end
  redis.call('ZREM', messages, id)
  redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr')
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, body, received, first_at
end

--@include _visible

local word = take_visible()
if word == 'again' then return {'again'} end
if word == 'empty' then return empty() end
count('totalrecv', taken)
return reply
