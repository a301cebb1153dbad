-- issue: when tickets may have been sent to clients; a client with an earlier ticket keeps its position.
-- needs: meta nfree now_ms nwaiting
local function note_issue()
  if nwaiting > nfree then return end
  redis.call('HSET', meta, 'issued_at', string.format('%.0f', now_ms))
end
