-- replay_dequeue: return a recorded hand-out to a repeated call.
-- needs: messages tokens nunknowns count_of kept_handed
-- stem: prefix of that call's tokens. A message no longer held under its token has the mid ''.
local function replay_dequeue(kept, stem)
  local items = kept_handed(kept)
  local reply = {tonumber(items[1]), tonumber(items[2]), tonumber(items[3])}
  for i = 5, #items do
    local mid, attempt, crashes, life, lock_at = string.match(items[i], '^(.*)\29(%d+)\29(%d+)\29(.*)\29(%d+)$')
    mid = mid or items[i]
    local held = redis.call('HGET', tokens, mid) == stem .. (i - 5)
    local n = #reply
    reply[n + 2] = held and redis.call('HGET', messages, mid) or ''
    if not held then mid = '' end
    reply[n + 1], reply[n + 3], reply[n + 4] = mid, tonumber(attempt) or 1, tonumber(crashes) or 0
    reply[n + 5], reply[n + 6] = life or '', tonumber(lock_at or items[4])
    reply[n + 7] = held and count_of(nunknowns, mid) or 0
  end
  return reply
end
