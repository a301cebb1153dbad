#!lua flags=allow-oom
--[[
repair: one step of a walk over a queue that removes what crashed clients left: ids without a body, fields of
missing messages. It lists the queue again if it wasn't.

KEYS
  messages:zset attributes:hash queues:set
ARGV
  now             epoch microseconds, or '' for the server's clock
  name            of the queue
  ids_cursor      0 to begin, then as returned, '' = done
  fields_cursor   the same for the other walk
  limit           about how many of each
RETURNS  {'ok', ids_cursor, fields_cursor, phantoms removed, fields removed} | {'not_found'}
COST     O(limit)
WRITES   nothing if the queue doesn't exist
]]
local messages, attributes, queues = unpack(KEYS)
local now, name, ids_cursor, fields_cursor, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(5)
if name == '' or #name > 640 or string.find(name, '[%c:]') then refuse('name', '1 to 160 printable characters without :') end
limit = whole('limit', limit, 1, 1000)
whole_or_none('now', now, 0, 9007199254740991)
--@include _clock
read_clock(now)
--@include _settings
--@include _reserved

if not exists then return {'not_found'} end
probe('SCARD', queues)
-- Both walks read before anything is written: an invalid cursor raises.
local ids_page = ids_cursor ~= '' and redis.call('ZSCAN', messages, ids_cursor, 'COUNT', limit)
local fields_page = fields_cursor ~= '' and redis.call('HSCAN', attributes, fields_cursor, 'COUNT', limit)
probe('ZCARD', messages)
redis.call('SADD', queues, name)

local function after(cursor) return cursor == '0' and '' or cursor end

local phantoms, fields = 0, 0
if ids_page then
  local cursor, scored = unpack(ids_page)
  for i = 1, #scored, 2 do
    -- A member that may be in flight, whose body follows, stays; see _visible.
    local settled = #scored[i] == 32 or scored[i + 1] + 5000 < now_ms
    if is_setting(scored[i]) or (settled and redis.call('HEXISTS', attributes, scored[i]) == 0) then
      redis.call('ZREM', messages, scored[i])
      phantoms = phantoms + 1
    end
  end
  ids_cursor = after(cursor)
end
if fields_page then
  local cursor, values = unpack(fields_page)
  for i = 1, #values, 2 do
    local id = string.match(values[i], '^(.*):[rf][cr]$') or values[i]
    local known = (#id == 32 or #id == 22) and string.match(id, '^[%w:]+$')
    if known and not redis.call('ZSCORE', messages, id) then
      fields = fields + redis.call('HDEL', attributes, values[i])
    end
  end
  fields_cursor = after(cursor)
end
return {'ok', ids_cursor, fields_cursor, phantoms, fields}
