#!lua
--[[
subscribe: create a group at a position; an existing group stays unchanged.

KEYS
  log:stream base:stream meta:hash groups:set group:hash
ARGV
  now           epoch ms, or '' for the server's clock
  name          of the group, as in group's name
  start         'earliest' | 'latest' | 'index' | 'time'
  value         the index to begin with, or epoch ms; else ''
  out_of_range  where to continue if the next message was dropped: 'earliest' | 'latest' | 'error'
RETURNS  {'made' | 'exists', settled index}; {'out-of-range', first, last}
COST     O(log messages)
WRITES   nothing when it exists
]]
local log, base, meta, groups, group = unpack(KEYS)
local now, name, start, value, out_of_range = unpack(ARGV)

--@include shared/_arguments
keys_are(5)
arguments_are(5)
whole_or_none('now', now, 0, 253402300799999)
one_of('start', start, 'earliest', 'latest', 'index', 'time')
if start == 'index' or start == 'time' then whole('value', value, -9007199254740991, 9007199254740991) end
one_of('out_of_range', out_of_range, 'earliest', 'latest', 'error')
--@include queue/_text
if name == '' or #name > 512 or not is_text(name) then
  refuse('name', '1 to 512 bytes of UTF-8 without control characters')
end
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries
--@include _find
--@include _place

-- A group whose position is unreadable is recreated.
local there = tonumber(redis.call('HGET', group, 'cursor'))
if there and there >= 0 and there <= 9007199254740000 and there % 1 == 0 then return {'exists', there} end
probe('SCARD', groups)
local position = position_of(start, value)
if not position then return {'out-of-range', state.first, state.last} end
redis.call('HSET', group, 'cursor', text(position), 'out_of_range', out_of_range, 'made_at', text(now_ms))
redis.call('SADD', groups, name)
return {'made', position}
