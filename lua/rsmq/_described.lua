-- described: the queue's attributes as they are stored, and how many messages it has.
-- needs: messages attributes now_ms
local FIELDS = {'vt', 'delay', 'maxsize', 'totalrecv', 'totalsent', 'created', 'modified'}
local function described()
  local reply = {'ok'}
  for i, text in ipairs(redis.call('HMGET', attributes, unpack(FIELDS))) do reply[i + 1] = text or '' end
  reply[9] = redis.call('ZCARD', messages)
  reply[10] = redis.call('ZCOUNT', messages, string.format('(%.0f', now_ms), '+inf')
  -- As Node counts them: since the beginning of this second.
  reply[11] = redis.call('ZCOUNT', messages, string.format('%.0f', now_ms - now_ms % 1000), '+inf')
  return reply
end
