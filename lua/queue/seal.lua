#!lua flags=allow-oom
--[[
seal: make the queue reject new messages, except for its live mids and keys. Other messages go to the partitions of a
newer epoch. Sealed queues stay sealed.

KEYS
  meta:hash
ARGV
  epoch  the epoch of the partitions that replace the queue, 1-1000000
RETURNS  {'sealed', the epoch of the first seal}
COST     O(1)
WRITES   nothing for a sealed queue
]]
local meta = unpack(KEYS)
local epoch = unpack(ARGV)

--@include shared/_arguments
keys_are(1)
arguments_are(1)
whole('epoch', epoch, 1, 1000000)
local known = redis.call('HGET', meta, 'sealed')
if not known or redis.call('HGET', meta, 'max_content') ~= 'sealed' then
  redis.call('HSET', meta, 'sealed', known or epoch, 'max_content', 'sealed')
end
return {'sealed', known or epoch}
