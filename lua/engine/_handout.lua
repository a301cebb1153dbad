-- handout: give ready messages to one caller, each with a lock and a token.
-- needs: messages locks tokens nattempts ncrashes generations options ready circle left_ready left_circle meta caller number lease_ms max_lease max_content now_ms

-- As much of `window` as has 4 MiB of content: measured before it is read, where the queue has long ones.
local function readable(window)
  if #window * max_content <= 4194304 then return window end
  local bytes, i = redis.call('HSTRLEN', messages, window[1]), 1
  while window[i + 1] and bytes <= 4194304 do
    bytes, i = bytes + redis.call('HSTRLEN', messages, window[i + 1]), i + 1
  end
  return {unpack(window, 1, bytes > 4194304 and math.max(1, i - 1) or i)}
end

-- Up to `limit` mids off the head of ready. A message with a crash on record goes alone, so that blame is exact.
local function pick(limit)
  local notes = redis.call('SCARD', left_ready)
  local window = readable(redis.call('LRANGE', ready, 0, limit + math.min(notes, limit) - 1))
  if #window == 0 then return {} end
  local noted = notes > 0 and redis.call('SMISMEMBER', left_ready, unpack(window)) or {}
  local crashes = redis.call('HLEN', ncrashes) > 0 and redis.call('HMGET', ncrashes, unpack(window)) or {}
  local contents = redis.call('HMGET', messages, unpack(window))
  local picked, stale, used = {}, {}, 0
  for i, mid in ipairs(window) do
    if noted[i] == 1 or not contents[i] then stale[#stale + 1] = mid else
      if #picked == limit or (#picked > 0 and crashes[i]) then break end
      picked[#picked + 1] = {mid, contents[i], 0, tonumber(crashes[i]) or 0, '', 0}
    end
    used = i
    if crashes[i] and picked[1] then break end
  end
  redis.call('LTRIM', ready, used, -1)
  if #stale > 0 then redis.call('SREM', left_ready, unpack(stale)) end
  return picked
end

local function write_locks(mids, picked, lock_at, attempts)
  local expiry, token, attempt, first = {}, {}, {}, {}
  for i, mid in ipairs(mids) do
    local right = caller .. '.' .. number .. '.' .. (i - 1)
    expiry[2 * i - 1], expiry[2 * i] = mid, string.format('%.0f', lock_at[i])
    token[2 * i - 1], token[2 * i] = mid, right
    attempt[2 * i - 1], attempt[2 * i] = mid, (tonumber(attempts[i]) or 0) + 1
    if not attempts[i] then first[#first + 1], first[#first + 2] = mid, right end
    picked[i][3], picked[i][6] = attempt[2 * i], lock_at[i]
  end
  redis.call('HSET', locks, unpack(expiry))
  redis.call('HSET', tokens, unpack(token))
  redis.call('HSET', nattempts, unpack(attempt))
  if #first > 0 then redis.call('HSET', generations, unpack(first)) end
  return 2 * #mids > #first
end

local function enter_circle(mids)
  local noted = redis.call('SCARD', left_circle) > 0 and redis.call('SMISMEMBER', left_circle, unpack(mids)) or {}
  local fresh, back = {}, {}
  for i, mid in ipairs(mids) do
    if noted[i] == 1 then back[#back + 1] = mid else fresh[#fresh + 1] = mid end
  end
  if back[1] then redis.call('SREM', left_circle, unpack(back)) end
  if fresh[1] then redis.call('RPUSH', circle, unpack(fresh)) end
end

-- -> fence of the first, and rows of mid, content, attempt, ncrashes, generation ('' = its token), lock_at
local function lock_up(picked)
  local mids, lock_at, longest = {}, {}, max_lease
  for i, row in ipairs(picked) do mids[i] = row[1] end
  local own = redis.call('HLEN', options) > 0 and redis.call('HMGET', options, unpack(mids)) or {}
  for i = 1, #mids do
    local length = math.max(tonumber(string.match(own[i] or '', '^%d+')) or 0, tonumber(lease_ms))
    longest, lock_at[i] = math.max(longest, length), now_ms + length
  end
  if longest > max_lease then redis.call('HSET', meta, 'max_lease', longest) end
  if write_locks(mids, picked, lock_at, redis.call('HMGET', nattempts, unpack(mids))) then
    local lives = redis.call('HMGET', generations, unpack(mids))
    for i, row in ipairs(picked) do row[5] = lives[i] end
  end
  enter_circle(mids)
  return redis.call('HINCRBY', meta, 'fence', #mids) - #mids + 1
end
