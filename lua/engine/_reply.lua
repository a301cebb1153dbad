-- reply: the hand-out part of a reply: sleep_ms, paused, fence of the first, then six items a message.
-- needs: messages tokens ready due circle eoq_backoff ndry_runs paused now_ms

-- Nothing to hand out: how long to wait, told to every other caller through eoq_backoff.
local function rest(lap)
  local runs = redis.call('INCR', ndry_runs)
  redis.call('PEXPIRE', ndry_runs, 60000)
  local length, first = redis.call('LLEN', circle), redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
  local cap = 30000
  if length > 0 then cap = math.max(50, math.floor(2000 * math.min(1, lap / length))) end
  local ms = math.min(cap, 10 * 2 ^ math.min(runs, 12))
  if first[2] then ms = math.min(ms, math.max(1, first[2] - now_ms)) end
  redis.call('SET', eoq_backoff, string.format('%.0f', now_ms + ms), 'PX', string.format('%.0f', ms))
  return ms
end

-- A rest is never longer than 30 s: one that seems so was begun before the clock stepped back.
local function resting_ms()
  local till = tonumber(redis.call('GET', eoq_backoff))
  local left_ms = till and till - now_ms or 0
  return left_ms <= 30000 and left_ms or 0
end

-- Promote, walk, then hand out: each waiting class progresses whatever the ready list holds.
local function hand_out(limit)
  local lap = redis.call('LLEN', ready) == 0 and 100 or math.min(100, 2 * limit + 8)
  promote(lap)
  walk(lap)
  local picked = paused == '1' and {} or pick(limit)
  local fence = #picked > 0 and lock_up(picked) or 0
  local more = redis.call('LLEN', ready) > 0 and paused ~= '1'
  if more then wake_up() end
  if #picked > 0 or more then redis.call('DEL', ndry_runs) end
  local reply = {(#picked > 0 or more) and 0 or rest(lap), paused == '1' and 1 or 0, fence}
  for _, row in ipairs(picked) do
    for column = 1, 6 do reply[#reply + 1] = row[column] end
  end
  return reply
end

local function without_contents(reply)
  local short = {}
  for i, item in ipairs(reply) do short[i] = (i > 3 and (i - 3) % 6 == 2) and '' or item end
  return short
end

-- The recorded hand-out again; a message no longer held under its token comes with mid ''.
local function handed_again()
  local items = recorded_part('^[^\30]*\30[^\30]*\30(.*)$')
  for i = 1, #items do
    local column = (i - 3) % 6
    if i <= 3 or column == 3 or column == 4 or column == 0 then items[i] = tonumber(items[i]) end
  end
  for i = 4, #items, 6 do
    local held = redis.call('HGET', tokens, items[i]) == caller .. '.' .. number .. '.' .. ((i - 4) / 6)
    items[i + 1] = held and redis.call('HGET', messages, items[i]) or ''
    if not held then items[i] = '' end
  end
  return items
end
