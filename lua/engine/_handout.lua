-- handout: lock what was picked for one caller, each message with a token.
-- needs: locks tokens nattempts generations options circle left_circle meta caller number lease_ms max_lease now_ms
local function write_locks(mids, reply, lock_at, attempts)
  local expiry, token, attempt, again = {}, {}, {}, false
  local stem, last, last_text = caller .. '.' .. number .. '.', 0, '0'
  for i, mid in ipairs(mids) do
    local right, ends = stem .. (i - 1), lock_at[i]
    if ends ~= last then last, last_text = ends, string.format('%.0f', ends) end
    expiry[2 * i - 1], expiry[2 * i] = mid, last_text
    token[2 * i - 1], token[2 * i] = mid, right
    attempt[2 * i - 1], attempt[2 * i] = mid, '1'
    if attempts[i] then
      reply[6 * i] = (tonumber(attempts[i]) or 0) + 1
      attempt[2 * i], again = reply[6 * i], true
    end
    reply[6 * i + 3] = ends
  end
  redis.call('HSET', locks, unpack(expiry))
  redis.call('HSET', tokens, unpack(token))
  redis.call('HSET', nattempts, unpack(attempt))
  return again
end

local function enter_circle(mids)
  local fresh = take_over(left_circle, mids)
  if fresh[1] then redis.call('RPUSH', circle, unpack(fresh)) end
end

-- Lock what was picked: the rest of its reply, the generation '' standing for its token.
local function lock_up(reply, mids)
  local lock_at, longest, lease = {}, max_lease, tonumber(lease_ms)
  local own = redis.call('HLEN', options) > 0 and redis.call('HMGET', options, unpack(mids)) or {}
  for i = 1, #mids do
    local length = own[i] and math.max(tonumber(string.match(own[i], '^%d+')) or 0, lease) or lease
    longest, lock_at[i] = math.max(longest, length), now_ms + length
  end
  if longest > max_lease then redis.call('HSET', meta, 'max_lease', longest) end
  if write_locks(mids, reply, lock_at, redis.call('HMGET', nattempts, unpack(mids))) then
    local lives = redis.call('HMGET', generations, unpack(mids))
    for i = 1, #mids do reply[6 * i + 2] = lives[i] or '' end
  end
  enter_circle(mids)
  reply[3] = redis.call('HINCRBY', meta, 'fence', #mids) - #mids + 1
end
