#!lua flags=allow-oom
--[[
resume: end a pause and wake a child.

KEYS
  eoq_backoff:string wake:list meta:hash
RETURNS  {'resumed'}
COST     O(1)
WRITES   all keys; a queue that isn't paused only gets a needless wake
]]
local eoq_backoff, wake, meta = unpack(KEYS)

--@include shared/_arguments
keys_are(3)
local nwake = redis.call('LLEN', wake)

redis.call('HDEL', meta, 'paused', 'pause_ends')
redis.call('DEL', eoq_backoff)
if nwake == 0 then redis.call('LPUSH', wake, '1') end
return {'resumed'}
