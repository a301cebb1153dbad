#!lua flags=allow-oom
--[[
put_entry: store a field of a hash, even if the server's memory is full. For small entries of bounded number.

KEYS
  entries:hash
ARGV
  verb   'HSET' | 'HSETNX'
  field  its name
  text   its value
RETURNS  as the verb: 1 if the field is new, else 0
COST     O(1)
WRITES   entries
]]
local entries = unpack(KEYS)
local verb, field, text = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(3)
one_of('verb', verb, 'HSET', 'HSETNX')
redis.call('HEXISTS', entries, field)
if verb == 'HSETNX' then return redis.call('HSETNX', entries, field, text) end
return redis.call('HSET', entries, field, text)
