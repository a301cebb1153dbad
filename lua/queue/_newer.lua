-- newer: what enqueue does with a mid that lives. Every branch names the state that it handles.
-- needs: messages options backoffs meta locks requeue add_to any emit leave_circle leave_due leave_ready level now_ms start_newer status tick to_due to_ready wake_up write_options done progress
-- given: what the call asks for: {not_before: epoch ms or nil, own: lock length and dedupe backoff, joined by a comma,
-- can_update, can_requeue: '0' or '1'}
-- own: the options that go on where this call gives none
local function keep_for_later(mid, content, given, action, own)
  tick()
  local till = given.not_before and string.format('%.0f', given.not_before) or ''
  own = given.own == ',' and own and string.match(own, '^%d*,%d*$') or given.own
  redis.call('HSET', requeue, mid, till .. ',' .. own .. ':' .. content)
  any.newer, any.sides = true, true
  return action, ''
end

-- done: start over at once, unless a dedupe backoff still runs
local function enqueue_done(mid, content, given, word)
  local waiting = word == 'done-with-requeue'
  if waiting and given.can_update == '1' then return keep_for_later(mid, content, given, 'updated') end
  if given.can_requeue ~= '1' then return 'exists', word end
  if waiting and level == 'all' then emit('superseded', mid, now_ms) end
  if word ~= 'done-awaiting-gc' then return keep_for_later(mid, content, given, 'requeued') end
  keep_for_later(mid, content, given)
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
local function keep_until_recovered(mid, content, given)
  local own = any.newer and redis.call('HEXISTS', requeue, mid) == 1 and '' or redis.call('HGET', options, mid)
  wake_up()
  return keep_for_later(mid, content, given, 'updated', own)
end

local function update_queued(mid, content, given)
  if redis.call('HEXISTS', locks, mid) == 1 then return keep_until_recovered(mid, content, given) end
  tick()
  redis.call('HSET', messages, mid, content)
  redis.call('HDEL', progress, mid) -- the checkpoint is of other arguments
  write_options({mid}, given.own)
  local not_before = given.not_before
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

local function enqueue_again(mid, content, given)
  local word = status(mid)
  if string.sub(word, 1, 4) == 'done' then return enqueue_done(mid, content, given, word) end
  if string.sub(word, 1, 6) == 'queued' then
    if given.can_update ~= '1' then return 'exists', word end
    return update_queued(mid, content, given)
  end
  if word == 'locked-with-requeue' and given.can_update == '1' then return keep_for_later(mid, content, given, 'updated') end
  if given.can_requeue == '1' then return keep_for_later(mid, content, given, 'requeued') end
  return 'exists', word
end
