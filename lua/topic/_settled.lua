-- settled: the index up to which a group is done, whatever is held further on.
-- needs: group held
local function settled()
  local lowest = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
  return lowest and tonumber(lowest) - 1 or tonumber(redis.call('HGET', group, 'cursor')) or 0
end
