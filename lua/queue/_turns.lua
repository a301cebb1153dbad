-- turns: take messages from the lines of the keys whose turn it is, and from ready, which is the line of the key ''.
-- needs: messages ncrashes nunknowns ready lines turns rests meta any max_content now_ms turn pick rarely in_lines UNIT
-- Virtual time restarts here, long before a double can't distinguish two messages.
local TURN_ENDS = 4e15

-- How many messages of a key may start now: one if a limit applies, or one child would hold messages that others could
-- run.
local function allowance(s, now_us)
  if s.waiting == 0 or s.hold > now_ms or (s.most and s.running >= s.most) then return 0 end
  if s.interval and s.tat - now_us > (s.burst - 1) * s.interval then return 0 end
  return (s.most or s.interval) and 1 or s.tail - s.head
end

-- Keys whose turn comes first, in parallel arrays: names, states, how many of each may go, how many are planned,
-- which slot is taken next, how many went out.
local function candidates(limit)
  local all = in_lines()
  local without_key = all.state_of('')
  without_key.waiting = redis.call('LLEN', ready)
  without_key.head, without_key.tail = 0, without_key.waiting
  all.offer('', without_key)
  all.write_offers()
  local some = {names = redis.call('ZRANGE', turns, 0, limit - 1), states = {}, may = {}, planned = {}, slot = {}, out = {}}
  local names, states, may, planned, slot, out, now_us = some.names, some.states, some.may, some.planned, some.slot, some.out, all.now_us
  if not names[1] then return some end
  all.states_of(names)
  all.rule_states(names)
  for i = 1, #names do
    local s = all.known[names[i]]
    -- Only a clock that stepped back leaves a key owing more than its burst.
    if s.interval then s.tat = math.min(s.tat, now_us + s.burst * s.interval) end
    states[i], may[i], planned[i], slot[i], out[i] = s, allowance(s, now_us), 0, s.head, 0
  end
  return some
end

-- Rounds of one unit of virtual time, lowest first. A limited key that went once keeps the others
-- back, so that weights hold under limits. -> the order in which keys go: the index of one for each message
local function plan(some, room)
  local states, may, planned, passes = some.states, some.may, some.planned, {}
  local order, n, served, count = {}, 0, true, #some.names
  for i = 1, count do passes[i] = states[i].pass end
  local beyond = redis.call('ZCARD', turns) > count and passes[count] + UNIT or math.huge
  while room > 0 and served do
    local base = math.huge
    for i = 1, count do
      local s, given = states[i], planned[i]
      if passes[i] < base and (may[i] > given or (given > 0 and s.tail - s.head > given)) then base = passes[i] end
    end
    local upper = math.min(base + UNIT, beyond)
    served = false
    for i = 1, count do
      local pass, left = passes[i], may[i] - planned[i]
      if room > 0 and left > 0 and pass < upper then
        local cost = states[i].cost
        local some_more = math.min(room, left, math.ceil((upper - pass) / cost))
        for k = 1, some_more do order[n + k] = i end
        n, room, served = n + some_more, room - some_more, true
        planned[i], passes[i] = planned[i] + some_more, pass + some_more * cost
      end
    end
  end
  return order
end

-- A message that has crashed a worker goes alone, as in pick.
local function take_lines(some, order, reply, mids)
  local names, states, slot, out = some.names, some.states, some.slot, some.out
  local fields, of, nfields = {}, {}, 0
  for k = 1, #order do
    local i = order[k]
    if names[i] ~= '' then
      nfields = nfields + 1
      fields[nfields], of[nfields] = string.format('%d:%s', slot[i], names[i]), i
      slot[i] = slot[i] + 1
    end
  end
  if nfields == 0 then return end
  local mids_in_line, window, nwindow = redis.call('HMGET', lines, unpack(fields)), {}, 0
  for i = 1, nfields do
    if mids_in_line[i] then nwindow = nwindow + 1; window[nwindow] = mids_in_line[i] end
  end
  local crashes = any.crashes and window[1] and rarely().counts(ncrashes, window) or {}
  local unknowns = any.unknowns and window[1] and rarely().counts(nunknowns, window) or {}
  local short, strange, used, j, n = window, {}, 0, 0, #mids
  if nwindow * max_content > MAX_BYTES then short = rarely().readable(window) end
  if not string.find(table.concat(window), '^[ -~]*$') then strange = rarely().strange_ones(window) end
  local contents, nshort = short[1] and redis.call('HMGET', messages, unpack(short)) or {}, #short
  for i = 1, nfields do
    local mid, index = mids_in_line[i], of[i]
    local s = states[index]
    if mid then
      j = j + 1
      if j > nshort or (n > 0 and crashes[j]) then break end
      s.waiting = math.max(0, s.waiting - 1)
      if strange[j] or #mid > MAX_MID_LENGTH then
        rarely().set_aside(mid)
      elseif contents[j] then
        local at = 7 * n + 3
        reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = mid, contents[j], 1, crashes[j] or 0
        reply[at + 5], reply[at + 6], reply[at + 7] = '', 0, unknowns[j] or 0
        n = n + 1
        mids[n], out[index] = mid, out[index] + 1
      end
    end
    used, s.head, s.touched = i, s.head + 1, true
    if mid and crashes[j] and mids[1] then break end
  end
  if used > 0 then redis.call('HDEL', lines, unpack(fields, 1, used)) end
end

local function take_ready(some, reply, mids)
  local planned, before, without_key = 0, #mids, 0
  for i = 1, #some.names do
    if some.names[i] == '' then without_key, planned = i, some.planned[i] end
  end
  if planned == 0 then return end
  pick(before + planned, reply, mids)
  local s = some.states[without_key]
  some.out[without_key], s.waiting = #mids - before, redis.call('LLEN', ready)
  s.head, s.tail = 0, s.waiting
end

-- Update each key's used turns and limits; blocked keys leave turns, some of them for a while.
local function settle_turns(some)
  local all, stay, nstay, leave, last = in_lines(), {}, 0, {}, 0
  local now_us, names = all.now_us, some.names
  for i = 1, #names do
    local key, s, out = names[i], some.states[i], some.out[i]
    local pass = s.pass
    if out > 0 then
      s.touched = true
      pass = pass + out * s.cost
      s.pass = pass
      if key ~= '' then s.running = s.running + out end
      if s.interval then s.tat = math.max(s.tat, now_us) + s.interval * out end
    end
    if pass > last then last = pass end
    local rest_until = 0
    if s.waiting > 0 then
      rest_until = math.max(s.hold, s.interval and math.ceil((s.tat - (s.burst - 1) * s.interval) / 1000) or 0)
    end
    if s.waiting == 0 or (s.most and s.running >= s.most) or rest_until > now_ms then
      s.turned, leave[#leave + 1], s.touched = false, key, true
      if rest_until > now_ms then
        s.resting = true
        redis.call('ZADD', rests, string.format('%.0f', rest_until), key)
      end
    elseif out > 0 then
      nstay = nstay + 2
      stay[nstay - 1], stay[nstay] = string.format('%d', pass), key
    end
  end
  if stay[1] then redis.call('ZADD', turns, unpack(stay)) end
  if leave[1] then redis.call('ZREM', turns, unpack(leave)) end
  return last
end

-- Virtual time equals that of the next key, or of the last key if no key waits.
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
  if not some.names[1] then return reply, mids end
  local order = plan(some, limit)
  if order[1] and some.names[order[1]] == '' then
    take_ready(some, reply, mids)
    if (reply[7] or 0) == 0 then take_lines(some, order, reply, mids) end
  else
    take_lines(some, order, reply, mids)
    if (reply[7] or 0) == 0 then take_ready(some, reply, mids) end
  end
  advance(settle_turns(some))
  return reply, mids
end
