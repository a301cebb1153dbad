#!lua flags=no-writes
--[[
read: return results, calls, stored members, or why members aren't done.

KEYS
  calls:hash items:hash failed:hash results:hash
ARGV
  what  `calls`, `items`, `failed` or `results`
  then up to 1,000 fields: a step, or `step:number`
RETURNS  {'values', then the values}: nil for a missing value. With `failed` and no field: up to 1,000 fields and their
         values
COST     O(fields)
WRITES   nothing
]]
local calls, items, failed, results = unpack(KEYS)
local what = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(1, 0, 1000)
one_of('what', what, 'calls', 'items', 'failed', 'results')
local function with_word(values)
  table.insert(values, 1, 'values')
  return values
end
if #ARGV == 1 then
  if what ~= 'failed' or redis.call('HLEN', failed) > 2000 then return {'values'} end
  return with_word(redis.call('HGETALL', failed))
end
local key = ({calls = calls, items = items, failed = failed, results = results})[what]
return with_word(redis.call('HMGET', key, unpack(ARGV, 2)))
