-- moved: the messages that a sealed queue rejects: neither their mid nor their key is live in it.
-- needs: messages options backoffs due done keys rests rules requeue now_ms
-- A key with waiting or running messages has a state in `keys`. A delayed message isn't counted there, and restores the
-- state when it is due. So a key with limits also lives while `rests` lists it, see keep_key of _lines. Other keys move; while
-- messages are delayed, moved keys are remembered in `moved_at`, and stay moved.
-- starts_over: this call would restart finished mids; they restart elsewhere. During a backoff, newer content may wait here.
-- ordered: whether the call's keys are
-- left_out: by index, words of omitted messages; 'moved' is added to it
-- -> keys to add to moved_at, names to remove from rests
local function leave_out_moved(mids, key_of, starts_over, ordered, left_out, moved_at)
  local first_due = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
  local moved, known, stale = {}, {}, {}
  redis.call('SCARD', moved_at)

  local function mid_lives(mid)
    return redis.call('HEXISTS', messages, mid) == 1
      and not (starts_over and redis.call('SISMEMBER', done, mid) == 1 and redis.call('HEXISTS', backoffs, mid) == 0)
  end

  local function is_limited(key)
    local function limits(rule) return string.find(rule or '', '^%d*,?%d') end
    return ordered or limits(redis.call('HGET', rules, '')) or limits(redis.call('HGET', rules, key))
  end

  -- A name that doesn't count now never counts again: later it might, by another key's message.
  local function counts(name, holds)
    local score = redis.call('ZSCORE', rests, name)
    if not score then return false end
    if holds(tonumber(score) - 1e15) then return true end
    stale[#stale + 1] = name
    return false
  end

  local function is_kept(key)
    return redis.call('ZSCORE', rests, '\31')
      or counts('\31' .. key, function(at) return at > now_ms or (first_due and first_due <= now_ms) end)
      or counts('\31\31' .. key, function() return redis.call('HLEN', requeue) > 0 end)
  end

  local function key_lives(key)
    if known[key] == nil then
      known[key] = (redis.call('HEXISTS', keys, key) == 1 or (is_limited(key) and is_kept(key)))
        and redis.call('SISMEMBER', moved_at, key) == 0
      if not known[key] and first_due then moved[#moved + 1] = key end
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
  return moved, stale
end
