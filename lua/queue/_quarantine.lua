-- quarantine: set aside bytes in ready, due or circle that can't be a mid: not text, or too long. No client could name it.
-- needs: messages quarantine forget
local MAX_QUARANTINED = 10000

-- The content is set aside with the bytes; beyond the limit both are dropped. A field is cut, so that a page of them
-- stays small.
local function set_aside(bytes)
  local content = redis.call('HGET', messages, bytes) or ''
  if redis.call('HLEN', quarantine) < MAX_QUARANTINED then
    redis.call('HSET', quarantine, string.sub(bytes, 1, MAX_MID_LENGTH), content)
  end
  forget(bytes)
end
