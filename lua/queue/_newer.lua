-- newer: what enqueue does with a mid that lives. Every branch names the state that it handles.
-- needs: messages locks tokens backoffs nattempts ncrashes generations requeue options due done meta now_ms not_before can_update can_requeue lock_ms dedupe_ms any
-- own: the options that go on where this call gives none
local function keep_for_later(mid, content, action, own)
  tick()
  local till, given = not_before and string.format('%.0f', not_before) or '', lock_ms .. ',' .. dedupe_ms
  own = given == ',' and own and string.match(own, '^%d*,%d*$') or given
  redis.call('HSET', requeue, mid, till .. ',' .. own .. ':' .. content)
  any.newer, any.sides = true, true
  return action, ''
end

-- done: start over at once, unless a dedupe backoff still runs
local function enqueue_done(mid, content, word)
  local waiting = word == 'done-with-requeue'
  if waiting and can_update == '1' then return keep_for_later(mid, content, 'updated') end
  if can_requeue ~= '1' then return 'exists', word end
  if waiting and level == 'all' then emit('superseded', mid, now_ms) end
  if word ~= 'done-awaiting-gc' then return keep_for_later(mid, content, 'requeued') end
  keep_for_later(mid, content)
  if redis.call('HEXISTS', backoffs, mid) == 1 then
    add_to(meta, 'deduped', -1)
    leave_due(mid)
  else
    leave_circle(mid)
  end
  start_newer(mid, redis.call('HGET', requeue, mid))
  return 'added', ''
end

-- queued under an expired lock: the walk ends that run, by the worker's limit of crashes, and starts this content
local function keep_until_recovered(mid, content)
  local own = any.newer and redis.call('HEXISTS', requeue, mid) == 1 and '' or redis.call('HGET', options, mid)
  wake_up()
  return keep_for_later(mid, content, 'updated', own)
end

local function update_queued(mid, content)
  if redis.call('HEXISTS', locks, mid) == 1 then return keep_until_recovered(mid, content) end
  tick()
  redis.call('HSET', messages, mid, content)
  write_options({mid})
  if not_before then
    local waits = redis.call('HEXISTS', backoffs, mid) == 1
    if not_before > now_ms then
      if not waits then leave_ready(mid) end
      to_due(mid, not_before)
    elseif waits then
      leave_due(mid)
      to_ready(mid)
    end
  end
  return 'updated', ''
end

local function enqueue_again(mid, content)
  local word = status(mid)
  if string.sub(word, 1, 4) == 'done' then return enqueue_done(mid, content, word) end
  if string.sub(word, 1, 6) == 'queued' then
    if can_update ~= '1' then return 'exists', word end
    return update_queued(mid, content)
  end
  if word == 'locked-with-requeue' and can_update == '1' then return keep_for_later(mid, content, 'updated') end
  if can_requeue == '1' then return keep_for_later(mid, content, 'requeued') end
  return 'exists', word
end
