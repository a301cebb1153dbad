-- handout: lock the picked messages for one caller, each with a token.
-- needs: circle left_circle meta locks nattempts tokens generations any fence max_lease now_ms rarely options
local function write_locks(mids, reply, lock_at, attempts, stem)
  local expiry, token, again = {}, {}, {}
  local last, last_text = 0, '0'
  for i = 1, #mids do
    local mid, right, ends = mids[i], stem .. (i - 1), lock_at[i]
    if ends ~= last then last, last_text = ends, string.format('%d', ends) end
    expiry[2 * i - 1], expiry[2 * i] = mid, last_text
    token[2 * i - 1], token[2 * i] = mid, right
    if attempts[i] then
      reply[7 * i - 1] = math.floor(stored(attempts[i], 1e15, 0)) + 1
      again[#again + 1], again[#again + 2] = mid, reply[7 * i - 1]
    end
    reply[7 * i + 2] = ends
  end
  redis.call('HSET', locks, unpack(expiry))
  redis.call('HSET', tokens, unpack(token))
  if again[1] then redis.call('HSET', nattempts, unpack(again)) end
  return again[1]
end

-- Lock the picked messages, and complete their reply; the generation '' means the token.
local function lock_up(reply, mids, by)
  local lease_ms = by.lease_ms
  local lock_at, longest = {}, math.max(max_lease, lease_ms)
  for i = 1, #mids do lock_at[i] = now_ms + lease_ms end
  if any.options then
    for i, own_ms in pairs(rarely().lock_lengths(mids)) do
      longest, lock_at[i] = math.max(longest, own_ms), now_ms + math.max(own_ms, lease_ms)
    end
  end
  -- A message with earlier attempts has a generation, and with it a side record.
  local attempts = any.sides and redis.call('HMGET', nattempts, unpack(mids)) or {}
  if write_locks(mids, reply, lock_at, attempts, by.stem) then
    local lives = redis.call('HMGET', generations, unpack(mids))
    for i = 1, #mids do reply[7 * i + 1] = lives[i] or '' end
  end
  local fresh = any.left_circle and rarely().take_over(left_circle, mids) or mids
  if fresh[1] then redis.call('RPUSH', circle, unpack(fresh)) end
  -- If another program overwrote the fence, the fence continues from the time, which no count has reached.
  local first = fence and math.floor(stored(fence, 9e15, now_ms)) + 1 or 1
  local fields = {'fence', string.format('%d', first + #mids - 1)}
  if longest > max_lease then fields[3], fields[4] = 'max_lease', longest end
  redis.call('HSET', meta, unpack(fields))
  reply[3] = first
end
