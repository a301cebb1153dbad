#!lua
--[[
put: store one chunk of a map that waits for other steps. Stored chunks never change; an expanded map accepts no more.

KEYS
  meta:hash steps:hash items:hash
ARGV
  step  the map
  chunk  its number, from 0
  packed  its members, which scripts don't read
RETURNS  {'ok'}, {'full'} if the flow would exceed 8 MiB, {'closed'} if the flow has ended, was cancelled or is gone
COST     O(1)
WRITES   meta and items
]]
local meta, steps, items = unpack(KEYS)
local step, chunk, packed = unpack(ARGV)

--@include shared/_arguments
keys_are(3)
arguments_are(3)
whole('chunk', chunk, 0, 39999)
if not string.find(step, '^[%w_-]+$') or #step > 32 then refuse('step', '1-32 letters, digits, _ and -') end
probe('HLEN', meta, steps, items)
--@include _flow

local MAX_BYTES = 8388608
local flow = read_flow()
if not flow or flow.over > 0 or flow.state == 'cancelled' then return {'closed'} end
local s, field = step_of(step), step .. ':' .. chunk
if s and s.sealed == 1 or redis.call('HEXISTS', items, field) == 1 then return {'ok'} end
local bytes = count_in(redis.call('HGET', meta, 'stored')) + #packed
if bytes > MAX_BYTES then return {'full'} end
redis.call('HSET', items, field, packed)
redis.call('HSET', meta, 'stored', text(bytes))
local left = redis.call('PTTL', meta)
if left > 0 then redis.call('PEXPIRE', items, text(left)) end
return {'ok'}
