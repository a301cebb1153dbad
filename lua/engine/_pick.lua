-- pick: take messages off the head of ready, those that are to be handed out.
-- needs: messages ncrashes ready left_ready max_content
-- As much of `window` as has 4 MiB of content: measured before it is read, where the queue has long ones.
local function readable(window)
  if #window * max_content <= 4194304 then return window end
  local bytes, i = redis.call('HSTRLEN', messages, window[1]), 1
  while window[i + 1] and bytes <= 4194304 do
    bytes, i = bytes + redis.call('HSTRLEN', messages, window[i + 1]), i + 1
  end
  return {unpack(window, 1, bytes > 4194304 and math.max(1, i - 1) or i)}
end

-- Up to `limit` mids off the head of ready, and the reply: three items, then six a message, of which the hand-out
-- fills in attempt, generation and lock_at. A message with a crash on record goes alone, so that blame is exact.
local function pick(limit)
  local reply, mids = {0, 0, 0}, {}
  local notes = redis.call('SCARD', left_ready)
  local window = readable(redis.call('LRANGE', ready, 0, limit + math.min(notes, limit) - 1))
  if #window == 0 then return reply, mids end
  local noted = notes > 0 and redis.call('SMISMEMBER', left_ready, unpack(window)) or {}
  local crashes = redis.call('HLEN', ncrashes) > 0 and redis.call('HMGET', ncrashes, unpack(window)) or {}
  local contents = redis.call('HMGET', messages, unpack(window))
  local stale, used, n = {}, 0, 0
  for i, mid in ipairs(window) do
    if noted[i] == 1 or not contents[i] then stale[#stale + 1] = mid else
      if n == limit or (n > 0 and crashes[i]) then break end
      local at = 6 * n + 3
      reply[at + 1], reply[at + 2], reply[at + 3] = mid, contents[i], 1
      reply[at + 4], reply[at + 5], reply[at + 6] = tonumber(crashes[i]) or 0, '', 0
      n = n + 1
      mids[n] = mid
    end
    used = i
    if crashes[i] and mids[1] then break end
  end
  redis.call('LTRIM', ready, used, -1)
  if #stale > 0 then redis.call('SREM', left_ready, unpack(stale)) end
  return reply, mids
end
