#!lua
--[[
subscribe: make a group, at a place; one that is there stays as it is.

KEYS
  log:stream base:stream meta:hash groups:set group:hash
ARGV
  now           epoch ms, or '' for the server's clock
  name          of the group, as in group's name
  start         'earliest' | 'latest' | 'index' | 'time'
  value         the index to begin with, or epoch ms; else ''
  out_of_range  where to go on when the next message was dropped: 'earliest' | 'latest' | 'error'
RETURNS  {'made' | 'exists', settled index}; {'out-of-range', first, last}
COST     O(log messages)
WRITES   nothing when it exists
]]
local log, base, meta, groups, group = unpack(KEYS)
local now, name, start, value, out_of_range = unpack(ARGV)

--@include _state
--@include _entries
--@include _find
--@include _place

if not ({earliest = 1, latest = 1, error = 1})[out_of_range] then
  return redis.error_reply('ERR out_of_range must be earliest, latest or error')
end
local there = redis.call('HGET', group, 'cursor')
if there then return {'exists', tonumber(there)} end
local position = position_of(start, value)
if position == nil then
  return redis.error_reply('ERR start must be earliest, latest, or index or time with a number')
end
if not position then return {'out-of-range', state.first, state.last} end
redis.call('HSET', group, 'cursor', position, 'out_of_range', out_of_range, 'made_at', now_ms)
redis.call('SADD', groups, name)
return {'made', position}
