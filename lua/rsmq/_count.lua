-- count: adds to a counter of the queue; one that holds no whole number begins anew.
-- needs: attributes
local function count(field, by)
  local total = redis.pcall('HINCRBY', attributes, field, by)
  if type(total) == 'number' then return total end
  redis.call('HSET', attributes, field, by)
  return by
end
