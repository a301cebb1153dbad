-- count: how often deliveries of a message ended without an acknowledgement; 0 if the stored value is not a number.
-- needs: unacked
local function count_of(text)
  local number = tonumber(text)
  return number and number >= 0 and number <= 9007199254740000 and math.floor(number) or 0
end

-- One more of them.
local function count_one(id)
  local count = count_of(redis.call('HGET', unacked, id)) + 1
  redis.call('HSET', unacked, id, string.format('%.0f', count))
  return count
end

local function is_id(text) return #text <= 40 and string.match(text, '^%d+%-%d+$') end
