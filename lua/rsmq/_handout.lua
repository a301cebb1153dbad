-- handout: take(id, body) hides a message and adds id, body, times received, first received at to the reply.
-- needs: messages attributes now_ms vt vt_text whole count reply
local visible_at = now_ms + 1000 * (tonumber(vt) or whole(vt_text, 30))

local function take(id, body)
  redis.call('ZADD', messages, visible_at, id)
  local received, first_at = count(id .. ':rc', 1), string.format('%.0f', now_ms)
  if received == 1 then
    redis.call('HSET', attributes, id .. ':fr', first_at)
  else
    first_at = redis.call('HGET', attributes, id .. ':fr') or '0'
  end
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, body, received, first_at
end
