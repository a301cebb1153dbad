-- delete: one message, unless it was received again since; 'deleted' | 'absent' | 'stale'.
-- needs: messages attributes refusal
local function delete(id, receipt)
  local word = refusal(id, receipt)
  if not word then
    redis.call('ZREM', messages, id)
    return redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr') > 0 and 'deleted' or 'absent'
  end
  if word == 'absent' and #id == 32 then
    redis.call('HDEL', attributes, id, id .. ':rc', id .. ':fr')
  end
  return word
end
