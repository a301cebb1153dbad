-- generation: erase a message's traces, let its newer content start over, or take its lock away.
-- needs: messages locks tokens backoffs nattempts ncrashes generations requeue options progress done now_ms
local function forget_sides(...)
  for _, key in ipairs({locks, tokens, backoffs, nattempts, ncrashes, generations, requeue, options, progress}) do
    redis.call('HDEL', key, ...)
  end
  redis.call('SREM', done, ...)
end

local function forget(...)
  redis.call('HDEL', messages, ...)
  forget_sides(...)
end

local function packed(not_before, lock_ms, dedupe_ms, content)
  return not_before .. ',' .. lock_ms .. ',' .. dedupe_ms .. ':' .. content
end

local function unlock(mid)
  redis.call('HDEL', locks, mid)
  redis.call('HDEL', tokens, mid)
end

-- The attempt is over and the message isn't: its generation goes by the token of the first attempt.
local function unlock_to_wait(mid, token)
  redis.call('HSETNX', generations, mid, token or redis.call('HGET', tokens, mid) or '')
  unlock(mid)
end

-- The newer content of `mid`, which its caller has taken out of its place, starts with attempts 0.
local function start_newer(mid, newer)
  local cut = string.find(newer, ':', 1, true)
  local not_before, lock_ms, dedupe_ms = string.match(newer, '^(%d*),(%d*),(%d*):')
  forget_sides(mid)
  redis.call('HSET', messages, mid, string.sub(newer, cut + 1))
  if lock_ms .. dedupe_ms ~= '' then redis.call('HSET', options, mid, lock_ms .. ',' .. dedupe_ms) end
  not_before = tonumber(not_before)
  if not_before and not_before > now_ms then to_due(mid, not_before) else to_ready(mid) end
end
