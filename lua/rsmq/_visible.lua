-- visible: the messages that may be received; phantoms, which have no body, are removed.
-- needs: messages attributes is_setting now_ms times
local PHANTOMS, WRITING_MS = 1000, 5000

-- Add up to `limit` messages to the reply, in order: id, body, times received, first received at, ms.
-- -> {ids, first_time: which were never received before}, or nil and the reply to give instead:
-- {'again'}: only phantoms so far; {'empty', ms until the next look is worthwhile, '' if no message waits}
local function find_visible(limit, reply)
  local now_text, ids, first_time = string.format('%.0f', now_ms), {}, {}
  local taken, passed, removed, n = 0, 0, 0, #reply
  repeat
    local due_ids = redis.call('ZRANGEBYSCORE', messages, '-inf', now_text, 'LIMIT', taken + passed, limit - taken)
    local fields = {}
    for i = 1, #due_ids do
      local id = due_ids[i]
      fields[3 * i - 2], fields[3 * i - 1], fields[3 * i] = id, id .. ':rc', id .. ':fr'
    end
    local values = due_ids[1] and redis.call('HMGET', attributes, unpack(fields))
    for i = 1, #due_ids do
      local id, body = due_ids[i], values[3 * i - 2]
      if body and (#id > 9 or not is_setting(id)) then
        local received = times(values[3 * i - 1]) + 1
        taken = taken + 1
        ids[taken], first_time[taken] = id, received == 1
        reply[n + 1], reply[n + 2], reply[n + 3] = id, body, received
        reply[n + 4] = received == 1 and now_text or values[3 * i] or '0'
        n = n + 4
      elseif #id ~= 32 and redis.call('ZSCORE', messages, id) + WRITING_MS > now_ms then
        -- Some clients write the id first and the body with a second command; their ids differ from ours.
        passed = passed + 1
      else
        redis.call('ZREM', messages, id)
        redis.call('HDEL', attributes, id .. ':rc', id .. ':fr')
        removed = removed + 1
      end
    end
  until taken == limit or not due_ids[1] or passed + removed > PHANTOMS

  if taken > 0 then return {ids = ids, first_time = first_time} end
  if removed > PHANTOMS then return nil, {'again'} end
  local score = tonumber(redis.call('ZRANGE', messages, 0, 0, 'WITHSCORES')[2])
  -- A message with an infinite time never becomes visible.
  local waits = score and score < 9007199254740991
  return nil, {'empty', waits and string.format('%.0f', math.max(passed > 0 and 100 or 1, score - now_ms)) or ''}
end
