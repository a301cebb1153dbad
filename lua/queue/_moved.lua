-- moved: the messages that a sealed queue rejects: neither their mid nor their key is live in it.
-- needs: messages options backoffs due done keys
-- A key with waiting or running messages has a state in `keys`. A delayed message isn't counted there, and restores the
-- state when it is due. So while messages are delayed, moved keys are remembered in `moved_at`, and stay moved.
-- starts_over: this call would restart finished mids; they restart elsewhere. During a backoff, newer content may wait here.
-- left_out: by index, words of omitted messages; 'moved' is added to it
-- -> keys to add to moved_at
local function leave_out_moved(mids, key_of, starts_over, left_out, moved_at)
  local any_due, moved, known = redis.call('ZCARD', due) > 0, {}, {}
  redis.call('SCARD', moved_at)

  local function mid_lives(mid)
    return redis.call('HEXISTS', messages, mid) == 1
      and not (starts_over and redis.call('SISMEMBER', done, mid) == 1 and redis.call('HEXISTS', backoffs, mid) == 0)
  end

  local function key_lives(key)
    if known[key] == nil then
      known[key] = redis.call('HEXISTS', keys, key) == 1 and redis.call('SISMEMBER', moved_at, key) == 0
      if not known[key] and any_due then moved[#moved + 1] = key end
    end
    return known[key]
  end

  for i, mid in ipairs(mids) do
    local key, lives = key_of[mid], mid_lives(mid)
    if key and lives then
      lives = string.match(redis.call('HGET', options, mid) or '', '^%d*,[@<>]?%d*,o?%-?%d*,(.+)$') == key
    end
    if not left_out[i] and not lives and not (key and key_lives(key)) then left_out[i] = 'moved' end
  end
  return moved
end
