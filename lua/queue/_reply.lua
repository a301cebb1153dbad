-- reply: the hand-out part of a reply: sleep_ms, paused, fence of the first message (due_ms if there is none), then
-- seven items a message.
-- needs: locks ready due circle eoq_backoff ndry_runs turns meta any lock_up now_ms paused pause_ms turn fence walked_at pick pick_turns in_lines rarely wake_up walk nentries MAX_ENTRIES member_records members plain_until stored LATEST_MS

-- If nothing can be handed out: how long to wait, which eoq_backoff tells all other callers, and due_ms.
local function rest(lap)
  local runs = math.min(12, stored(redis.call('GET', ndry_runs), 100, 0) + 1)
  redis.call('SET', ndry_runs, runs, 'PX', '60000')
  local length, first = redis.call('LLEN', circle), redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')
  local cap = 30000
  if length > 0 then cap = math.max(50, math.floor(2000 * math.min(1, lap / length))) end
  local ms = math.min(cap, 10 * 2 ^ runs)
  local due_ms = first[2] and math.max(1, first[2] - now_ms) or 0
  local rest_ms = turn and in_lines().next_rest()
  if rest_ms then due_ms = due_ms > 0 and math.min(due_ms, rest_ms) or rest_ms end
  if paused == '1' and pause_ms then due_ms = due_ms > 0 and math.min(due_ms, pause_ms) or pause_ms end
  if due_ms > 0 then ms = math.min(ms, due_ms) end
  redis.call('SET', eoq_backoff, string.format('%d', now_ms + ms), 'PX', string.format('%d', ms))
  return ms, due_ms
end

-- A rest is never longer than 30 s: a longer rest was begun before the clock stepped back.
local function resting_ms()
  local till = tonumber(redis.call('GET', eoq_backoff))
  local left_ms = till and till - now_ms or 0
  return left_ms <= 30000 and left_ms or 0
end

-- 1: the queue is halted, because it is paused, or flow_outbox is too long; 2: flow_outbox has entries.
local function standing()
  local still = paused == '1' or nentries > MAX_ENTRIES
  return (still and 1 or 0) + ((nentries > 0 or member_records[1]) and 2 or 0)
end

-- Whether to walk the circle: if nothing is ready, with every fiftieth hand-out, and 100 ms after the last walk. A walk
-- covers a small part of a long circle, so a long circle is walked with every tenth hand-out. A queue with keys or at a
-- standstill walks it in each call, because others may wait only for a freed slot.
local function walks(nready, nhanded)
  local since, before = now_ms - (tonumber(walked_at) or 0), fence and stored(fence, 9e15, 0) or 0
  return nready == 0 or turn or paused == '1' or before % 50 + nhanded >= 50 or not (since >= 0 and since < 100)
    or (before % 10 + nhanded >= 10 and redis.call('LLEN', circle) > 1000)
end

-- Plain calls may now go to their own scripts, until something is due or a script calls not_plain().
local function note_plain()
  if any.sides or any.left_ready or any.left_circle or turn or members or paused == '1' then return end
  if plain_until and now_ms < plain_until then return end
  local first = redis.call('ZRANGE', due, '0', '0', 'WITHSCORES')
  plain_until = first[1] and math.floor(stored(first[2], LATEST_MS, 0)) or LATEST_MS
  redis.call('HSET', meta, 'plain_until', string.format('%d', plain_until))
end

-- Promote, walk, then hand out, so that all waiting messages progress, whatever the ready list holds.
-- by: {stem: prefix of the tokens, lease_ms, crash_limit}
local function hand_out(limit, by)
  if paused == 'over' then redis.call('HDEL', meta, 'paused', 'pause_ends') end
  local nready = redis.call('LLEN', ready)
  local lap = nready == 0 and 100 or math.min(100, 2 * limit + 8)
  if any.due then rarely().promote(lap) end
  if walks(nready, math.min(limit, nready)) then
    walk(100, by.crash_limit)
    redis.call('HSET', meta, 'walked', string.format('%d', now_ms))
  end
  local reply, mids = {0, 0, 0}, {}
  local still = paused == '1' or nentries > MAX_ENTRIES
  local room, nturns = still and 0 or limit, 0
  if turn then
    local most = in_lines().most_running
    if most then room = math.min(room, most - redis.call('HLEN', locks)) end
    in_lines().end_rests(lap)
    if room > 0 then reply, mids = pick_turns(room) end
    nturns = redis.call('ZCARD', turns)
    if most then room = most - redis.call('HLEN', locks) - #mids end
  elseif room > 0 then
    pick(limit, reply, mids)
  end
  if mids[1] then lock_up(reply, mids, by) end
  local more = room > 0 and not still and redis.call('LLEN', ready) + nturns > 0
  if more then wake_up() end
  if mids[1] or more then redis.call('DEL', ndry_runs) else reply[1], reply[3] = rest(lap) end
  note_plain()
  reply[2] = standing()
  return reply
end

-- For the record: the head, the usual end of a lock, then per message the mid and, if they are unusual, its other
-- values.
local function without_contents(reply, lease_ms)
  local usual = now_ms + lease_ms
  local short = {reply[1], reply[2], reply[3], string.format('%d', usual)}
  local n = 4
  for i = 4, #reply, 7 do
    local mid, attempt, crashes, life, lock_at = reply[i], reply[i + 2], reply[i + 3], reply[i + 4], reply[i + 5]
    if attempt ~= 1 or crashes ~= 0 or life ~= '' or lock_at ~= usual then
      mid = table.concat({mid, attempt, crashes, life, string.format('%d', lock_at)}, '\29')
    end
    n = n + 1
    short[n] = mid
  end
  return short
end
