#!lua
--[[
life: set how long a sub-flow waits to be begun. Its parent calls this.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  parent  `flow.run.step` that the flow was stored for
  stamp  of the parent's item to send; later calls win
  life_ms  duration
RETURNS  {'ok'}; {'older'} if the parent has made a later call; {'other'} if the flow has begun, was cancelled, is gone,
         or has another parent
COST     O(1)
WRITES   meta, and the expiry of all keys
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local parent, stamp, life_ms = unpack(ARGV)

--@include shared/_arguments
keys_are(10)
arguments_are(3)
stamp = whole('stamp', stamp, 0, 9007199254740991)
life_ms = whole('life_ms', life_ms, 1, 3153600000000)
probe('HLEN', meta)
--@include _flow
--@include _life

local flow = read_flow()
if not flow or flow.state ~= 'open' or parent == '' or flow.parent ~= parent then return {'other'} end
if flow.stamp > stamp then return {'older'} end
-- Once the flow has begun, its calls to its own sub-flows come after this call.
redis.call('HSET', meta, 'stamp', text(stamp))
expire_all(life_ms)
return {'ok'}
