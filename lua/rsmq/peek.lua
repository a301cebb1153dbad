#!lua flags=no-writes
--[[
peek: look at messages without receiving them, the first to be visible first; about 256 KiB of them at most.

KEYS
  messages:zset attributes:hash
ARGV
  now      epoch microseconds, or '' for the server's clock
  place    'visible' | 'hidden' | 'all'
  offset   messages to skip
  limit    maximum number of messages to look at, 1-1000
RETURNS  {'ok', ids looked at, perhaps fewer than there are, then per message: id, body, times received, first
         received at, visible at, ms}, without phantoms; {'not_found'}
COST     O(offset + limit)
WRITES   nothing
]]
local messages, attributes = unpack(KEYS)
local now, place, offset, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(2)
arguments_are(4)
one_of('place', place, 'visible', 'hidden', 'all')
offset, limit = whole('offset', offset, 0, 9007199254740991), whole('limit', limit, 1, 1000)
whole_or_none('now', now, 0, 9007199254740991)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved
local PAGE_BYTES = 262144

if not exists then return {'not_found'} end
local text = string.format('%.0f', now_ms)
local from, to = '-inf', '+inf'
if place == 'visible' then to = text elseif place == 'hidden' then from = '(' .. text end
local scored = redis.call('ZRANGEBYSCORE', messages, from, to, 'WITHSCORES', 'LIMIT', string.format('%.0f', offset), limit)

local reply, bytes = {'ok', #scored / 2}, 0
for i = 1, #scored, 2 do
  if bytes >= PAGE_BYTES then
    reply[2] = (i - 1) / 2
    break
  end
  local id = scored[i]
  local body, received, first_at = unpack(redis.call('HMGET', attributes, id, id .. ':rc', id .. ':fr'))
  if body and not is_setting(id) then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3] = id, body, times(received)
    reply[n + 4], reply[n + 5] = first_at or '0', scored[i + 1]
    bytes = bytes + #id + #body
  end
end
return reply
