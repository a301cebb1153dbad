-- lines: messages with a key wait in the line of their key. The functions are made when a queue has keys or rules.
-- A key's state is read once in a call, and written once, by save. Its running messages hold a lock.
-- needs: messages options locks ready keys lines turns rests rules meta any wake_up now_ms turn dequeue_rate
-- Virtual time that a message of weight 1 takes. Whole numbers only: fractions might never add up to a round.
local UNIT = 1000000
if turn then
  probe('HLEN', keys, lines, rules)
  probe('ZCARD', turns, rests)
end

local made_lines
local function in_lines()
  if made_lines then return made_lines end
  local known = {}
  local now_us, most_running = now_ms * 1000, stored(redis.call('HGET', meta, 'max'), 1e9, nil)
  local any_rules = redis.call('HLEN', rules) > 0
  local no_rules = not any_rules

  -- -> key, slot, whether it is ordered; nothing for a message without a key
  local function key_in(own)
    local ordered, slot, key = string.match(own or '', '^%d*,[@<>]?%d*,(o?)(%-?%d*),(.+)$')
    return key, slot, ordered == 'o'
  end

  -- -> the key alone; most messages have no other options
  local function key_of(own)
    return own and (string.match(own, '^,,%d*,(.+)$') or (key_in(own)))
  end

  -- -> head, tail, waiting, running, pass, tat, hold, flags; nothing for an invalid state
  local function numbers_in(text)
    if not text or #text ~= 57 then return end
    local head, tail, waiting, running, pass, tat, hold, flags = struct.unpack('<dddddddB', text)
    local sum = (head < 0 and -head or head) + (tail < 0 and -tail or tail) + pass + waiting + running + tat + hold
    if sum <= 9e15 and sum % 1 == 0 and waiting >= 0 and running >= 0 and pass >= 0 and tat >= 0 and hold >= 0 then
      -- Only a key last used before virtual time restarted is so far ahead.
      if pass > turn + 1e12 then pass = turn end
      return head, tail, waiting, running, pass, tat, hold, flags
    end
  end

  local function state_in(text)
    local head, tail, waiting, running, pass, tat, hold, flags = numbers_in(text)
    if not head then return {head = 0, tail = 0, waiting = 0, running = 0, pass = -1, tat = 0, hold = 0} end
    return {
      head = head, tail = tail, waiting = waiting, running = running, pass = pass, tat = tat, hold = hold,
      turned = flags % 2 == 1, resting = flags % 4 > 1, ordered = flags > 3, cost = no_rules and UNIT or nil,
    }
  end

  local function states_of(names)
    local missing, n = {}, 0
    for i = 1, #names do
      local key = names[i]
      if not known[key] then n = n + 1; missing[n], known[key] = key, true end
    end
    if n == 0 then return end
    local texts = redis.call('HMGET', keys, unpack(missing))
    for i = 1, n do known[missing[i]] = state_in(texts[i]) end
  end

  -- For keys in turns that aren't known yet, only numbers change: more wait, or fewer run. They are written
  -- immediately. names: in any order, each as often as it counts.
  -- -> by name the tails that the lines of such keys had; the other names
  local function count_turned(names, change)
    local counts, asked, n, others, m = {}, {}, 0, {}, 0
    for i = 1, #names do
      local key = names[i]
      local count = counts[key]
      if count then
        counts[key] = count + 1
      elseif known[key] then
        m = m + 1
        others[m] = key
      else
        n, counts[key] = n + 1, 1
        asked[n] = key
      end
    end
    if n == 0 then return counts, others end
    local texts, row, w = redis.call('HMGET', keys, unpack(asked)), {}, 0
    for i = 1, n do
      local key = asked[i]
      local count = counts[key]
      local head, tail, waiting, running, pass, tat, hold, flags = numbers_in(texts[i])
      if head and flags % 2 == 1 then
        counts[key] = tail
        if change == 'run' then
          running = running > count and running - count or 0
        else
          tail, waiting = tail + count, waiting + count
        end
        row[w + 1], row[w + 2] = key, struct.pack('<dddddddB', head, tail, waiting, running, pass, tat, hold, flags)
        w = w + 2
      else
        counts[key] = nil
        for k = m + 1, m + count do others[k] = key end
        m = m + count
      end
    end
    if w > 0 then redis.call('HSET', keys, unpack(row)) end
    return counts, others
  end

  local function state_of(key)
    if not known[key] then known[key] = state_in(redis.call('HGET', keys, key)) end
    return known[key]
  end

  -- most, starts and in how many ms, weight, waiting; nil = none
  local function rule_in(text)
    local rule = {string.match(text or '', '^(%d*),(%d*),(%d*),(%d*),(%d*)$')}
    for i = 1, 5 do rule[i] = stored(rule[i], 3e12, nil) end
    return rule
  end

  -- Next to each state: the key's limits, from its own rule or the rule for all keys.
  local all_rule
  local function rule_states(names)
    if no_rules then
      for i = 1, #names do
        local s = known[names[i]]
        s.cost, s.most = UNIT, s.ordered and 1 or nil
      end
      return
    end
    all_rule = all_rule or rule_in(redis.call('HGET', rules, ''))
    local own = redis.call('HMGET', rules, unpack(names))
    for i, key in ipairs(names) do
      local s, all, own_rule = known[key], key ~= '' and all_rule or {}, key ~= '' and own[i] and rule_in(own[i]) or {}
      s.most = own_rule[1] or all[1]
      s.burst, s.interval = dequeue_rate(own_rule[2] and own_rule or all)
      s.most_waiting = own_rule[5] or all[5]
      s.cost = math.floor(UNIT / math.min(1000, math.max(1, math.floor(own_rule[4] or all[4] or 1))))
      if s.ordered then s.most = math.min(1, s.most or 1) end
    end
  end

  -- Put a key into turns, if messages wait and the key isn't held. The hand-out checks its limits. A key without a
  -- state pays for its first message in advance: otherwise a key that returns again and again would always be first.
  -- -> whether it was offered
  local offers, noffers = {}, 0
  local function offer(key, s)
    if s.turned or s.resting or s.waiting == 0 then return false end
    s.touched = true
    if s.hold > now_ms then
      redis.call('ZADD', rests, string.format('%.0f', s.hold), key)
      s.resting = true
      return false
    end
    if s.pass < 0 then
      if not s.cost then rule_states({key}) end
      s.pass = turn + s.cost
    end
    if s.pass < turn then s.pass = turn end
    s.turned, s.offered, noffers = true, true, noffers + 1
    offers[noffers] = key
    return true
  end

  local function write_offers()
    local row, n = {}, 0
    for i = 1, noffers do
      local key = offers[i]
      local s = known[key]
      if s.offered then
        n, s.offered = n + 2, false
        row[n - 1], row[n] = string.format('%d', s.pass), key
      end
    end
    noffers = 0
    for first = 1, n, 2000 do redis.call('ZADD', turns, unpack(row, first, math.min(n, first + 1999))) end
  end

  local function leave_turns(key, s)
    if not s.turned then return end
    s.turned, s.touched = false, true
    if s.offered then s.offered = false else redis.call('ZREM', turns, key) end
  end

  -- A key's state is deleted once no message waits or runs and the key owes nothing: a rest ends its debt.
  local function save()
    write_offers()
    local row, n, gone = {}, 0, {}
    for key, s in pairs(known) do if s.touched then
      s.touched = false
      if s.waiting == 0 then s.head = s.tail end
      local is_idle = s.waiting + s.running == 0
      if is_idle then
        local owes_until = math.max(s.hold, math.ceil(s.tat / 1000))
        if not s.turned and owes_until > now_ms and not s.resting then
          redis.call('ZADD', rests, string.format('%.0f', owes_until), key)
          s.resting = true
        elseif s.resting and owes_until <= now_ms then
          redis.call('ZREM', rests, key)
          s.resting = false
        end
      end
      if is_idle and not s.turned and not s.resting then
        gone[#gone + 1] = key
      else
        local pass, flags = s.pass, (s.turned and 1 or 0) + (s.resting and 2 or 0) + (s.ordered and 4 or 0)
        row[n + 1] = key
        row[n + 2] = struct.pack('<dddddddB', s.head, s.tail, s.waiting, s.running, pass < 0 and 0 or pass, s.tat, s.hold, flags)
        n = n + 2
      end
    end end
    for first = 1, n, 2000 do redis.call('HSET', keys, unpack(row, first, math.min(n, first + 1999))) end
    for first = 1, #gone, 2000 do redis.call('HDEL', keys, unpack(gone, first, math.min(#gone, first + 1999))) end
  end

  -- Return a key whose line these messages would make longer than its rule allows, and that length; nothing if none.
  local function full_line(mids, key_of)
    if not any_rules then return end
    local names, more = {}, {}
    for i, content in ipairs(redis.call('HMGET', messages, unpack(mids))) do
      local key = key_of[mids[i]]
      if key and not more[key] then names[#names + 1], more[key] = key, 0 end
      if key and not content then more[key] = more[key] + 1 end
    end
    states_of(names)
    rule_states(names)
    for _, key in ipairs(names) do
      local s = known[key]
      if s.most_waiting and more[key] > 0 and s.waiting + more[key] > s.most_waiting then return key, s.most_waiting end
    end
  end

  -- Append each new message to the line of its key. stem: lock length and dedupe backoff; mark: 'o' = ordered
  local function put(mids, key_of, stem, mark)
    local names, own, slots, last, slot, before = {}, {}, {}, nil, nil, stem .. ',' .. mark
    for i = 1, #mids do names[i] = key_of[mids[i]] end
    local tails, others = {}, names
    if mark == '' then tails, others = count_turned(names, 'wait') end
    states_of(others)
    for i = 1, #mids do
      local mid, key = mids[i], names[i]
      local tail, s = tails[key], nil
      if tail then
        tails[key] = tail + 1
      else
        s = known[key]
        tail = s.tail
      end
      if tail ~= last then last, slot = tail, string.format('%d', tail) end
      own[2 * i - 1], own[2 * i] = mid, before .. slot .. ',' .. key
      slots[2 * i - 1], slots[2 * i] = slot .. ':' .. key, mid
      if s then
        s.tail, s.waiting, s.touched = tail + 1, s.waiting + 1, true
        if mark == 'o' then s.ordered = true end
        if not s.turned then offer(key, s) end
      end
    end
    redis.call('HSET', options, unpack(own))
    redis.call('HSET', lines, unpack(slots))
    any.options, any.sides = true, true
    wake_up()
  end

  -- back: the message was handed out and returns; an ordered message returns to the head, whatever ended its attempt.
  -- -> whether it has a key, and so a line
  local function to_line(mid, front, back)
    local own = redis.call('HGET', options, mid)
    local key, _, ordered = key_in(own)
    if not key then return false end
    local s = state_of(key)
    local at_head = front or (back and ordered)
    if at_head then s.head = s.head - 1 else s.tail = s.tail + 1 end
    local slot = string.format('%.0f', at_head and s.head or s.tail - 1)
    redis.call('HSET', lines, slot .. ':' .. key, mid)
    redis.call('HSET', options, mid, string.match(own, '^%d*,[@<>]?%d*,') .. (ordered and 'o' or '') .. slot .. ',' .. key)
    s.waiting, s.ordered, s.touched = s.waiting + 1, s.ordered or ordered, true
    offer(key, s)
    return true
  end

  -- -> whether it has a key, and so was in a line
  local function leave_line(mid)
    local key, slot = key_in(redis.call('HGET', options, mid))
    if not key then return false end
    local field = slot .. ':' .. key
    if redis.call('HGET', lines, field) == mid then
      local s = state_of(key)
      redis.call('HDEL', lines, field)
      s.waiting, s.touched = math.max(0, s.waiting - 1), true
      if s.waiting == 0 then leave_turns(key, s) end
    end
    return true
  end

  -- These messages lose their locks, if they have any, so their keys and the queue may run more.
  -- given: if all are held, the key of each, or false; else nil
  local function free_slots(mids, given)
    local names, n, freed, offered = {}, 0, #mids, false
    if given then
      for i = 1, #mids do
        if given[i] then n = n + 1; names[n] = given[i] end
      end
    else
      local held, own = redis.call('HMGET', locks, unpack(mids)), redis.call('HMGET', options, unpack(mids))
      freed = 0
      for i = 1, #mids do
        local key = held[i] and key_of(own[i])
        if held[i] then freed = freed + 1 end
        if key then n = n + 1; names[n] = key end
      end
    end
    local _, others = count_turned(names, 'run')
    states_of(others)
    for i = 1, #others do
      local key = others[i]
      local s = known[key]
      s.running, s.touched = math.max(0, s.running - 1), true
      if not s.turned then offered = offer(key, s) or offered end
    end
    if freed > 0 and most_running and not offered then
      offered = redis.call('LLEN', ready) + redis.call('ZCARD', turns) > 0
    end
    if offered then wake_up() end
  end

  -- No message of the key is handed out before `till`.
  local function hold(key, till)
    local s = state_of(key)
    s.hold, s.touched = till, true
    if till > now_ms then
      leave_turns(key, s)
      s.resting = true
      redis.call('ZADD', rests, string.format('%.0f', till), key)
    elseif s.resting then
      redis.call('ZREM', rests, key)
      s.resting = false
      if offer(key, s) then wake_up() end
    end
  end

  local function hold_key(mid, wait_ms)
    local key = key_in(redis.call('HGET', options, mid))
    if key and wait_ms > 0 then hold(key, math.max(state_of(key).hold, now_ms + wait_ms)) end
  end

  -- A returning message makes its whole line wait if it is ordered, or if its job requested that.
  -- -> whether this message did
  local function hold_line(mid, wait_ms, asked)
    local key, _, ordered = key_in(redis.call('HGET', options, mid))
    if not key or not (ordered or asked) then return false end
    to_line(mid, true)
    hold_key(mid, wait_ms)
    wake_up()
    return true
  end

  local function end_rests(limit)
    for _, key in ipairs(redis.call('ZRANGE', rests, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, limit)) do
      local s = state_of(key)
      redis.call('ZREM', rests, key)
      s.resting, s.touched = false, true
      offer(key, s)
    end
  end

  -- ms until the first rest ends, or nil. Scores from 1e15 on are of keep_key.
  local function next_rest()
    local first = tonumber(redis.call('ZRANGE', rests, 0, 0, 'WITHSCORES')[2] or '')
    return first and first < 1e15 and math.max(1, math.ceil(first) - now_ms) or nil
  end

  -- Of a sealed queue: a key may have no waiting and running message, but delayed messages, or newer content. Its limits
  -- hold only if its other messages also stay. So `rests` lists such a key, after the keys that rest, as \31 and the key.
  -- seal lists the keys of earlier messages; \31 alone: not of all yet.
  -- at: when the key's last delayed message is due; nil: newer content, which starts at the end of a run
  local function keep_key(key, at)
    redis.call('ZADD', rests, 'GT', string.format('%.0f', 1e15 + (at or 0)), (at and '\31' or '\31\31') .. key)
  end

  made_lines = {
    known = known, now_us = now_us, most_running = most_running, key_in = key_in, key_of = key_of, state_of = state_of,
    states_of = states_of, rule_states = rule_states, offer = offer, write_offers = write_offers, leave_turns = leave_turns,
    save = save, put = put, full_line = full_line, to_line = to_line, leave_line = leave_line, free_slots = free_slots, hold = hold,
    hold_key = hold_key, hold_line = hold_line, end_rests = end_rests, next_rest = next_rest, keep_key = keep_key,
  }
  return made_lines
end

local function save_lines()
  if made_lines then made_lines.save() end
end
