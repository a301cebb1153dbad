#!lua
--[[
remove: delete a finished flow, or a flow never begun.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
RETURNS  {'removed', 'running' or 'gone'}
COST     O(steps)
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)

--@include shared/_arguments
keys_are(10)
arguments_are(0)
local state, over = unpack(redis.call('HMGET', meta, 'state', 'over'))
if not state then return {'gone'} end
if state ~= 'open' and (tonumber(over) or 0) == 0 then return {'running'} end
redis.call('UNLINK', meta, steps, calls, items, done, ended, retried, failed, results, todo)
return {'removed'}
