-- rows: delivered messages as in the reply and in the call's record, from which they are read again.
-- needs: messages undelivered delivered unacked count_of
local function queue_name()
  local name = string.match(undelivered, '^[^:]*:(.*):undelivered$') or undelivered
  return string.match(name, '^{([^{}]*)}$') or name
end

local function rows(handed, ...)
  local shown = {}
  for i, message in ipairs(handed) do
    shown[i] = {}
    for column, field in ipairs({...}) do shown[i][column] = message[field] end
  end
  return shown
end

local function words_of(handed)
  local words = {}
  for i, message in ipairs(handed) do words[i] = (message.queue or 1) .. ' ' .. message.id .. ' ' .. message.stamp end
  return words
end

-- Rows of a record whose messages were not delivered to others since.
local function held_still(words, turn_to)
  local handed = {}
  for _, word in ipairs(words) do
    local queue, id, stamp = string.match(word, '^(%d+) (%S+) (%S+)$')
    if turn_to then turn_to(tonumber(queue)) end
    if tonumber(redis.call('ZSCORE', delivered, id)) == tonumber(stamp) then
      local deliveries = count_of(redis.call('HGET', unacked, id)) + 1
      local content = redis.call('HGET', messages, id) or ''
      handed[#handed + 1] = {name = queue_name(), id = id, content = content, deliveries = deliveries}
    end
  end
  return handed
end
