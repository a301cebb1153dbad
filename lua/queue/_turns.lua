-- turns: take messages off the lines of the keys whose turn it is, and off ready, which is the line of the key ''.
-- needs: messages ncrashes nunknowns ready lines turns rests meta any max_content now_ms turn pick rarely in_lines UNIT
-- Virtual time begins anew here, long before a double can't tell one message from the next.
local TURN_ENDS = 4e15

-- How many of a key may go now. One at a time where a limit counts: else one child would hold what others could run.
local function allowance(s, now_us)
  if s.waiting == 0 or s.hold > now_ms or (s.most and s.running >= s.most) then return 0 end
  if s.interval and s.tat - now_us > (s.burst - 1) * s.interval then return 0 end
  return (s.most or s.interval) and 1 or s.tail - s.head
end

local function candidates(limit)
  local all = in_lines()
  local without_key = all.state_of('')
  without_key.waiting = redis.call('LLEN', ready)
  without_key.head, without_key.tail = 0, without_key.waiting
  all.offer('', without_key)
  all.write_offers()
  local names, some = redis.call('ZRANGE', turns, 0, limit - 1), {}
  if not names[1] then return some end
  all.states_of(names)
  all.rule_states(names)
  for i, key in ipairs(names) do
    local s = all.known[key]
    -- Only a clock that stepped back leaves a key owing more than its burst.
    if s.interval then s.tat = math.min(s.tat, all.now_us + s.burst * s.interval) end
    s.key, s.may, s.planned, s.out, s.next_pass = key, allowance(s, all.now_us), 0, 0, s.pass
    some[i] = s
  end
  return some
end

-- Rounds of one unit of virtual time, those with the least of it first. A limited key that went once keeps the others
-- back, so that weights hold under limits. -> the keys in the order in which they go, one for each message; `planned` of
-- each is then its first slot
local function plan(some, room)
  local order, n, served = {}, 0, true
  local beyond = redis.call('ZCARD', turns) > #some and some[#some].pass + UNIT or math.huge
  while room > 0 and served do
    local base = math.huge
    for _, s in ipairs(some) do
      local waits = s.may > s.planned or (s.planned > 0 and s.tail - s.head > s.planned)
      if waits and s.next_pass < base then base = s.next_pass end
    end
    local upper = math.min(base + UNIT, beyond)
    served = false
    for _, s in ipairs(some) do
      if room > 0 and s.may > s.planned and s.next_pass < upper then
        local some_more = math.min(room, s.may - s.planned, math.ceil((upper - s.next_pass) / s.cost))
        for i = 1, some_more do order[n + i] = s end
        n, room, served = n + some_more, room - some_more, true
        s.planned, s.next_pass = s.planned + some_more, s.next_pass + some_more * s.cost
      end
    end
  end
  for _, s in ipairs(some) do s.planned = s.head end
  return order
end

-- One that has crashed a worker goes alone, as in pick.
local function take_lines(order, reply, mids)
  local fields, of, nfields = {}, {}, 0
  for _, s in ipairs(order) do
    if s.key ~= '' then
      nfields = nfields + 1
      fields[nfields], of[nfields] = string.format('%d:%s', s.planned, s.key), s
      s.planned = s.planned + 1
    end
  end
  if not fields[1] then return end
  local found, window = redis.call('HMGET', lines, unpack(fields)), {}
  for i = 1, #fields do if found[i] then window[#window + 1] = found[i] end end
  local crashes = any.crashes and window[1] and rarely().counts(ncrashes, window) or {}
  local unknowns = any.unknowns and window[1] and rarely().counts(nunknowns, window) or {}
  local short, strange, used, j, n = window, {}, 0, 0, #mids
  if #window * max_content > MOST_BYTES then short = rarely().readable(window) end
  if not string.find(table.concat(window), '^[ -~]*$') then strange = rarely().strange_ones(window) end
  local contents = short[1] and redis.call('HMGET', messages, unpack(short)) or {}
  for i = 1, #fields do
    local mid, s = found[i], of[i]
    if mid then
      j = j + 1
      if j > #short or (n > 0 and crashes[j]) then break end
      s.waiting = math.max(0, s.waiting - 1)
      if strange[j] or #mid > LONGEST_MID then
        rarely().set_aside(mid)
      elseif contents[j] then
        local at = 7 * n + 3
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = mid, contents[j], 1, crashes[j] or 0
        reply[at + 5], reply[at + 6], reply[at + 7] = '', 0, unknowns[j] or 0
        n = n + 1
        mids[n], s.out = mid, s.out + 1
      end
    end
    used, s.head, s.touched = i, s.head + 1, true
    if mid and crashes[j] and mids[1] then break end
  end
  if used > 0 then redis.call('HDEL', lines, unpack(fields, 1, used)) end
end

local function take_ready(order, reply, mids)
  local planned, before = 0, #mids
  for _, s in ipairs(order) do planned = planned + (s.key == '' and 1 or 0) end
  if planned == 0 then return end
  pick(before + planned, reply, mids)
  local s = in_lines().state_of('')
  s.out, s.waiting = #mids - before, redis.call('LLEN', ready)
  s.head, s.tail = 0, s.waiting
end

-- What each key has used of its turns and limits; those that can't go on leave turns, some of them for a while.
local function settle_turns(some)
  local all, stay, nstay, leave, last = in_lines(), {}, 0, {}, 0
  for _, s in ipairs(some) do
    local key, now_us = s.key, all.now_us
    if s.out > 0 then s.touched = true end
    s.pass = s.pass + s.out * s.cost
    last = math.max(last, s.pass)
    if key ~= '' then s.running = s.running + s.out end
    if s.interval and s.out > 0 then s.tat = math.max(s.tat, now_us) + s.interval * s.out end
    local rate_until = s.interval and math.ceil((s.tat - (s.burst - 1) * s.interval) / 1000) or 0
    local rest_until = s.waiting > 0 and math.max(s.hold, rate_until) or 0
    if s.waiting == 0 or (s.most and s.running >= s.most) or rest_until > now_ms then
      s.turned, leave[#leave + 1], s.touched = false, key, true
      if rest_until > now_ms then
        s.resting = true
        redis.call('ZADD', rests, string.format('%.0f', rest_until), key)
      end
    elseif s.out > 0 then
      nstay = nstay + 2
      stay[nstay - 1], stay[nstay] = string.format('%d', s.pass), key
    end
  end
  if stay[1] then redis.call('ZADD', turns, unpack(stay)) end
  if leave[1] then redis.call('ZREM', turns, unpack(leave)) end
  return last
end

-- Virtual time is that of the key whose turn is next; where none waits, of the last one.
local function advance(last)
  local first = redis.call('ZRANGE', turns, 0, 0, 'WITHSCORES')[2]
  local time = math.max(turn, stored(first, 9e15, last))
  if time > TURN_ENDS then
    redis.call('ZUNIONSTORE', turns, 1, turns, 'WEIGHTS', 0)
    time = 0
  end
  if time ~= turn then redis.call('HSET', meta, 'turn', string.format('%.0f', time)) end
  turn = time
end

-- As pick, in the order of turns
local function pick_turns(limit)
  local reply, mids = {0, 0, 0}, {}
  local some = candidates(limit)
  if not some[1] then return reply, mids end
  local order = plan(some, limit)
  if order[1] and order[1].key == '' then
    take_ready(order, reply, mids)
    if (reply[7] or 0) == 0 then take_lines(order, reply, mids) end
  else
    take_lines(order, reply, mids)
    if (reply[7] or 0) == 0 then take_ready(order, reply, mids) end
  end
  advance(settle_turns(some))
  return reply, mids
end
