-- take: take ids out of the line. A ticket is for the message that it names or, if another client has the message, for
-- the next message.
-- needs: undelivered tickets nfree nwaiting
local function take_waiting(wanted, ticket)
  local count = math.min(wanted, nfree + (ticket and 1 or 0), nwaiting)
  if count < 1 then
    if ticket and nwaiting > nfree then redis.call('LPUSH', tickets, ticket) end
    return {}
  elseif not ticket and nwaiting == nfree then
    redis.call('LPOP', tickets, count)
    return redis.call('LPOP', undelivered, count)
  end
  local others = count - (ticket and 1 or 0)
  local named = others > 0 and redis.call('LPOP', tickets, others) or {}
  if ticket then table.insert(named, 1, ticket) end
  for i, id in ipairs(named) do
    if redis.call('LREM', undelivered, 1, id) == 0 then named[i] = redis.call('LPOP', undelivered) end
  end
  return named
end
