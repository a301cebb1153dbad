#!lua flags=no-writes
--[[
peek: look at messages without receiving them, the first to be visible first.

KEYS
  messages:zset attributes:hash
ARGV
  now      epoch microseconds, or '' for the server's clock
  place    'visible' | 'hidden' | 'all'
  offset   skip so many
  limit    so many at most
RETURNS  {'ok', then per message: id, body, times received, first received at, visible at, ms}, without
         phantoms; {'not_found'}
COST     O(offset + limit)
WRITES   nothing
]]
local messages, attributes = unpack(KEYS)
local now, place, offset, limit = unpack(ARGV)

--@include _clock
--@include _settings

if not exists then return {'not_found'} end
local text = string.format('%.0f', now_ms)
local from, to = '-inf', '+inf'
if place == 'visible' then to = text elseif place == 'hidden' then from = '(' .. text end
local found = redis.call('ZRANGEBYSCORE', messages, from, to, 'WITHSCORES', 'LIMIT', offset, limit)

local reply = {'ok'}
for i = 1, #found, 2 do
  local id = found[i]
  local body, received, first_at = unpack(redis.call('HMGET', attributes, id, id .. ':rc', id .. ':fr'))
  if body then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = id, body, received or '0'
    reply[n + 4], reply[n + 5] = first_at or '0', found[i + 1]
  end
end
return reply
