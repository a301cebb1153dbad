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

redis.call('HSET', meta, 'paused', '1')
return {'paused'}
