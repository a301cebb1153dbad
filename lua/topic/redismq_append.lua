#!lua
--[[
redismq_append: add messages to a topic of redismq's layout, all or none.

KEYS
  next_index:string last_call:string  then per index from base + 1 on: its message
ARGV
  caller  random id of the caller, as in the name of last_call
  number  of this call, counted up by the caller
  base    the index before the third key's index
  ttl_ms  until the messages expire, '' = never
  then the messages
RETURNS  {'ok', first index, last index}; {'moved', newest index}: its keys don't hold the next messages, call again
         with others; {'closed'}
COST     O(messages)
WRITES   nothing when moved or closed
]]
local next_index, last_call = unpack(KEYS, 1, 2)
local caller, number, base, ttl_ms = unpack(ARGV, 1, 4)

--@include shared/_arguments
if #ARGV < 5 or #ARGV > 1004 then refuse('the number of messages', '1 to 1000') end
if #KEYS < 2 then refuse('the number of keys', '2 or more') end
--@include shared/_caller
checked_number(caller, number)
base = whole('base', base, 0, 9007199254740000)
whole_or_none('ttl_ms', ttl_ms, 1, 3153600000000)
--@include shared/_call
--@include _record_life
local call = open_call(last_call, tonumber(number))
--@include _counter

if call.refused then return {'closed'} end
if call.kept then
  local first, last = string.match(call.kept, '^(%d+) (%d+)$')
  if not first then return redis.error_reply('ERR the record of this call is damaged') end
  return {'ok', tonumber(first), tonumber(last)}
end
local last = counter(next_index)
local nmessages, shift = #ARGV - 4, last - base
if shift < 0 or 2 + shift + nmessages > #KEYS then return {'moved', last} end
for i = 1, nmessages do
  if ttl_ms == '' then
    redis.call('SET', KEYS[2 + shift + i], ARGV[4 + i])
  else
    redis.call('SET', KEYS[2 + shift + i], ARGV[4 + i], 'PX', ttl_ms)
  end
end
redis.call('SET', next_index, string.format('%.0f', last + nmessages))
record_call(call, string.format('%.0f %.0f', last + 1, last + nmessages), life_of(call))
return {'ok', last + 1, last + nmessages}
