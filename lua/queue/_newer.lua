-- newer: the effect of enqueue on a live mid. Every branch names the state that it handles.
-- needs: messages options backoffs meta locks requeue sealed in_lines add_to any emit leave_circle leave_due leave_ready level now_ms start_newer status tick to_due to_ready wake_up write_options done progress turn not_plain
-- given: options of the call: {not_before: epoch ms or nil, own: lock length and dedupe backoff, joined by a comma,
-- can_update, can_requeue: '0' or '1', again: '', 'done' or 'start', at_most_ms: number or nil, key_of: the key of each
-- mid that has one, mark: 'o' if they are ordered}
-- own: the message's options, used if this call sets none
local function keep_for_later(mid, content, given, action, own)
  tick()
  local till = given.not_before and string.format('%.0f', given.not_before) or ''
  -- A waiting message keeps its key.
  local mark, key = string.match(own or '', '^%d*,[@<>]?%d*,(o?)%-?%d*,(.+)$')
  if not key then key, mark = given.key_of[mid], given.mark end
  own = string.match(given.own == ',' and own or given.own, '^%d*,%d*') or ','
  if key then own = own .. ',' .. mark .. ',' .. #key .. ',' .. key end
  not_plain()
  redis.call('HSET', requeue, mid, till .. ',' .. own .. ':' .. content)
  any.newer, any.sides = true, true
  if sealed and key then
    local ends_at = tonumber(redis.call('HGET', backoffs, mid) or '')
    local own_key = in_lines().key_of(redis.call('HGET', options, mid))
    -- A running message already keeps its own key here.
    if ends_at or key ~= own_key then in_lines().keep_key(key, ends_at) end
  end
  return action, ''
end

-- Replace the message's options. The key under which it waits stays.
local function give_options(mid, own)
  local kept_key = turn and string.match(redis.call('HGET', options, mid) or '', '^%d*,[@<>]?%d*(,.*)$') or ''
  write_options({mid}, own .. kept_key)
end

-- at_most_ms: the first content of a burst sets the deadline for later content to move it. sign: '<' for a waiting message, '>'
-- for content after a run. begins: this content is the first.
-- -> given, with the time and the options for this mid
local function bounded(mid, given, sign, begins)
  if not given.at_most_ms then return given end
  tick()
  local lock_ms, kept, latest, rest = string.match(redis.call('HGET', options, mid) or '', '^(%d*),([@<>]?)(%d*)(.*)$')
  latest = not begins and kept == sign and stored(latest, LATEST_MS, nil)
  -- A message that waits longer than this waits for a retry: it ran, and a new burst begins.
  local waits_till = sign == '<' and stored(redis.call('HGET', backoffs, mid), LATEST_MS, 0) or 0
  if not latest or waits_till > math.max(latest, now_ms) then latest = math.min(LATEST_MS, now_ms + given.at_most_ms) end
  local given_lock = string.match(given.own, '^%d*')
  if given_lock == '' then given_lock = lock_ms or '' end
  write_options({mid}, given_lock .. ',' .. sign .. string.format('%.0f', latest) .. (rest or ''))
  return {
    not_before = math.min(given.not_before, latest), own = given_lock .. ',', can_update = given.can_update,
    can_requeue = given.can_requeue, again = given.again, key_of = given.key_of, mark = given.mark,
  }
end

-- Whether the mid of a finished message is free for this call. `again` respects a requested dedupe, but not the dedupe
-- that a cancel leaves until the lock of the cancelled run ends.
local function is_free(mid, given, word)
  if given.can_requeue == '1' then return true end
  if given.again == '' or word == 'done-with-requeue' then return false end
  return word == 'done-awaiting-gc' or not string.find(redis.call('HGET', options, mid) or '', '^%d*,@?%d')
end

-- done: start over immediately, unless a dedupe backoff still runs
local function enqueue_done(mid, content, given, word)
  local waiting = word == 'done-with-requeue'
  if waiting and given.can_update == '1' then return keep_for_later(mid, content, bounded(mid, given, '>'), 'updated') end
  if not is_free(mid, given, word) then return 'exists', word end
  if waiting and level == 'all' then emit('superseded', mid, now_ms) end
  given = bounded(mid, given, '>', true)
  if word ~= 'done-awaiting-gc' then return keep_for_later(mid, content, given, 'requeued') end
  keep_for_later(mid, content, given)
  if redis.call('HEXISTS', backoffs, mid) == 1 then
    add_to(meta, 'deduped', -1)
    leave_due(mid)
  else
    leave_circle(mid)
  end
  start_newer(mid, redis.call('HGET', requeue, mid))
  if string.find(given.own, '@', 1, true) then give_options(mid, given.own) end
  return 'added', ''
end

-- queued under an expired lock: the walk ends that run, by the worker's limit of crashes, and starts this content
local function keep_until_recovered(mid, content, given)
  local waiting = any.newer and redis.call('HEXISTS', requeue, mid) == 1
  local own = waiting and '' or redis.call('HGET', options, mid)
  given = bounded(mid, given, '>', not waiting)
  wake_up()
  return keep_for_later(mid, content, given, 'updated', own)
end

local function update_queued(mid, content, given)
  if redis.call('HEXISTS', locks, mid) == 1 then return keep_until_recovered(mid, content, given) end
  tick()
  redis.call('HSET', messages, mid, content)
  redis.call('HDEL', progress, mid) -- the checkpoint belongs to other arguments
  if given.at_most_ms then given = bounded(mid, given, '<') elseif given.own ~= ',' then give_options(mid, given.own) end
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
  local waiting = word == 'locked-with-requeue'
  if waiting and given.can_update == '1' then
    return keep_for_later(mid, content, bounded(mid, given, '>'), 'updated')
  end
  if given.can_requeue == '1' or (given.again == 'start' and not waiting) then
    return keep_for_later(mid, content, bounded(mid, given, '>', not waiting), 'requeued')
  end
  return 'exists', word
end
