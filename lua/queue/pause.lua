#!lua flags=allow-oom
--[[
pause: hand nothing out until resume; upkeep goes on.

KEYS
  meta:hash
RETURNS  {'paused'}
COST     O(1)
WRITES   meta
]]
local meta = unpack(KEYS)

--@include shared/_arguments
keys_are(1)

redis.call('HDEL', meta, 'plain_until')
redis.call('HSET', meta, 'paused', '1')
return {'paused'}
