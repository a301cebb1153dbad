-- issue: since when tickets may be on their way to somebody; whoever got one earlier isn't forgotten for a new one.
-- needs: meta nfree now_ms nwaiting
local function note_issue()
  if nwaiting > nfree then return end
  redis.call('HSET', meta, 'issued_at', string.format('%.0f', now_ms))
end
