-- line: add ids to the line, after or before all others, in the given order, each with its ticket.
-- needs: undelivered tickets note_issue
local function line_up(ids, to_front)
  local command = to_front and 'LPUSH' or 'RPUSH'
  for first = 1, #ids, 1000 do
    local some = {}
    for i = first, math.min(#ids, first + 999) do
      some[#some + 1] = to_front and ids[#ids + 1 - i] or ids[i]
    end
    redis.call(command, undelivered, unpack(some))
    redis.call(command, tickets, unpack(some))
  end
  if #ids > 0 then note_issue() end
end
