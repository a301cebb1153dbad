-- generation: erase a message's traces, let its newer content start over, or take its lock away.
-- needs: messages options backoffs meta nattempts ncrashes requeue done tokens nunknowns generations progress add_to any free leave_circle now_ms to_due to_ready turn not_plain
local function forget_sides(...)
  free({...})
  for _, key in ipairs({backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options, progress}) do
    redis.call('HDEL', key, ...)
  end
  redis.call('SREM', done, ...)
end

local function forget(...)
  redis.call('HDEL', messages, ...)
  forget_sides(...)
end

-- The message is in the circle and done; its mid is rejected until `at`.
local function dedupe_until(mid, at)
  leave_circle(mid)
  free({mid})
  redis.call('SADD', done, mid)
  add_to(meta, 'deduped', 1)
  to_due(mid, at, true)
end

-- The attempt has ended, but the message hasn't: its generation is now the token of the first attempt.
-- -> whether this was the first attempt
local function unlock_to_wait(mid, token)
  not_plain()
  redis.call('HSETNX', generations, mid, token or redis.call('HGET', tokens, mid) or '')
  local is_first = redis.call('HSETNX', nattempts, mid, '1') == 1
  any.sides = true
  free({mid})
  return is_first
end

-- `not_before,lock_ms,dedupe_ms,o,5,k:y:1:content`: the mark of ordered ones, the length of the key, the key
-- -> the head, its first three, and the options after these; nothing if it has another shape
local function with_key(newer)
  local head, not_before, lock_ms, dedupe_ms, mark, length = string.match(newer, '^((%d*),(%d*),(%d*),(o?),(%d%d?%d?),)')
  if not head or not turn then return end
  local key = string.sub(newer, #head + 1, #head + length)
  if #key ~= tonumber(length) or string.sub(newer, #head + #key + 1, #head + #key + 1) ~= ':' then return end
  return head .. key .. ':', not_before, lock_ms, dedupe_ms, ',' .. mark .. ',' .. key
end

-- The newer content of `mid`, which its caller has taken out of its place, starts with attempts 0. Bytes of another
-- shape were written by another program. All of them are content then, which a worker can't read.
local function start_newer(mid, newer)
  local head, not_before, lock_ms, dedupe_ms = string.match(newer, '^((%d*),(%d*),(%d*):)')
  local latest = string.match(redis.call('HGET', options, mid) or '', '^%d*,>(%d+)')
  local key = ''
  if not head then head, not_before, lock_ms, dedupe_ms, key = with_key(newer) end
  forget_sides(mid)
  redis.call('HSET', messages, mid, string.sub(newer, #(head or '') + 1))
  if latest then dedupe_ms = '<' .. latest end
  if head and lock_ms .. dedupe_ms .. key ~= '' then
    redis.call('HSET', options, mid, lock_ms .. ',' .. dedupe_ms .. key)
    any.options, any.sides = true, true
  end
  not_before = stored(not_before, LATEST_MS, nil)
  if not_before and not_before > now_ms then to_due(mid, not_before) else to_ready(mid) end
end
