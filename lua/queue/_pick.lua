-- pick: take messages from the head of ready to hand out.
-- needs: messages ready left_ready ncrashes nunknowns any max_content rarely
-- Up to `limit` mids off the head of ready, and the reply: three items, then seven per message, of which the hand-out
-- fills in attempt, generation and lock_at. A message that has crashed a worker is handed out alone, so that the cause of a crash is certain.
-- reply, mids: messages taken before from elsewhere; `limit` includes them.
local function pick(limit, reply, mids)
  local notes = any.left_ready and rarely().drop_stale() or 0
  local n = #mids
  local window = redis.call('LRANGE', ready, '0', limit - n + math.min(notes, limit - n) - 1)
  if #window == 0 then return reply, mids end
  if #window * max_content > MAX_BYTES then window = rarely().readable(window) end
  local noted = notes > 0 and redis.call('SMISMEMBER', left_ready, unpack(window)) or {}
  local crashes = any.crashes and rarely().counts(ncrashes, window) or {}
  local unknowns = any.unknowns and rarely().counts(nunknowns, window) or {}
  local contents, strange = redis.call('HMGET', messages, unpack(window)), {}
  if not string.find(table.concat(window), '^[ -~]*$') then strange = rarely().strange_ones(window) end
  local stale, used = {}, 0
  for i = 1, #window do
    local mid = window[i]
    local is_strange = strange[i] or #mid > MAX_MID_LENGTH
    if noted[i] == 1 or not (contents[i] or is_strange) then
      stale[#stale + 1] = mid
    elseif is_strange then
      rarely().set_aside(mid)
    else
      if n == limit or (n > 0 and crashes[i]) then break end
      local at = 7 * n + 3
      reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = mid, contents[i], 1, crashes[i] or 0
      reply[at + 5], reply[at + 6], reply[at + 7] = '', 0, unknowns[i] or 0
      n = n + 1
      mids[n] = mid
    end
    used = i
    if crashes[i] and mids[1] then break end
  end
  redis.call('LTRIM', ready, used, '-1')
  if #stale > 0 then redis.call('SREM', left_ready, unpack(stale)) end
  return reply, mids
end
