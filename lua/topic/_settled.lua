-- settled: the index up to which a group has settled all messages, whatever is held after it.
-- needs: group held
local function settled()
  local lowest = redis.call('ZRANGE', held, 0, 0, 'WITHSCORES')[2]
  -- Also read after a write: a group of another type must not raise then.
  local index = tonumber(lowest and lowest - 1 or redis.pcall('HGET', group, 'cursor'))
  return index and index >= 0 and index <= 9007199254740000 and index or 0
end
