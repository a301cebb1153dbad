#!lua flags=allow-oom
--[[
redismq_poll: return the next messages of a group in redismq's layout. Its position moves immediately, even past holes.

KEYS
  next_index:string position:string last_call:string  then per index from base + 1 on: its message
ARGV
  caller        random id of the caller, as in the name of last_call
  number        of this call, counted up by the caller
  base          the index before the fourth key's index
  count         messages at most; about 4 MiB in all
  out_of_range  where to continue if the position is after the newest: 'earliest' | 'latest' | 'error'
RETURNS  {'ok', position, newest index, holes skipped, then per message: index, message}; {'moved', position,
         newest index}: call again with keys from there; {'out-of-range', position, newest index}; {'closed'}
COST     O(keys)
WRITES   nothing when there is nothing new, moved, closed or out of range by 'error'
]]
local next_index, position, last_call = unpack(KEYS, 1, 3)
local caller, number, base, count, out_of_range = unpack(ARGV)

--@include shared/_arguments
arguments_are(5)
if #KEYS < 3 then refuse('the number of keys', '3 or more') end
--@include shared/_caller
checked_number(caller, number)
base, count = whole('base', base, 0, 9007199254740000), whole('count', count, 1, 1000)
one_of('out_of_range', out_of_range, 'earliest', 'latest', 'error')
--@include shared/_call
--@include _record_life
local call = open_call(last_call, tonumber(number))
--@include _counter

if call.refused then return {'closed'} end
local at, last = counter(position), counter(next_index)
local upto = math.min(last, base + #KEYS - 3)
local strayed = at > last and not call.kept
if call.kept then
  at, upto = base, math.min(upto, tonumber(call.kept) or base)
elseif strayed then
  if out_of_range == 'error' then return {'out-of-range', at, last} end
  at = out_of_range == 'latest' and last or 0
end
if at ~= base then return {'moved', at, last} end

local messages, skipped, size = {}, 0, 0
while at < upto and #messages < 2 * count and size < 4194304 do
  at = at + 1
  -- A key of another type is neither a message nor the end.
  local message = redis.pcall('GET', KEYS[3 + at - base])
  if type(message) == 'string' then
    messages[#messages + 1], messages[#messages + 2] = at, message
    size = size + #message
  else
    skipped = skipped + 1
  end
end
if (at > base or strayed) and not call.kept then
  redis.call('SET', position, string.format('%.0f', at))
  record_call(call, string.format('%.0f', at), life_of(call))
end
return {'ok', at, last, skipped, unpack(messages)}
