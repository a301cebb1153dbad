-- key_facts: a key's state and its rule, for people; nothing is written.
-- needs: keys lines rules now_ms dequeue_rate
local function rule_parts(text)
  local parts = {string.match(text or '', '^(%d*),(%d*),(%d*),(%d*),(%d*)$')}
  for i = 1, 5 do parts[i] = stored(parts[i], 3e12, nil) end
  return parts
end

-- The first message of the line, and the place of a slot. Places vacated out of turn also count.
local function head_of(key, head, tail)
  for slot = head, math.min(head + 9, tail - 1) do
    local mid = redis.call('HGET', lines, string.format('%.0f:', slot) .. key)
    if mid then return mid end
  end
  return ''
end

-- -> nil for bytes that are no state
local function key_facts(key, state)
  if #state ~= 57 then return nil end
  local head, tail, waiting, running, pass, tat, hold, flags = struct.unpack('<dddddddB', state)
  local sum = math.abs(head) + math.abs(tail) + waiting + running + math.abs(pass) + tat + hold
  if not (sum <= 9e15 and sum % 1 == 0) then return nil end
  local all, own = rule_parts(redis.call('HGET', rules, '')), rule_parts(redis.call('HGET', rules, key))
  local most, rate = own[1] or all[1], own[2] and own or all
  if flags > 3 then most = 1 end
  local burst, interval = dequeue_rate(rate)
  local starts_at = interval and math.ceil((tat - (burst - 1) * interval) / 1000) or 0
  return {
    head = head, waiting = waiting, running = running, weight = own[4] or all[4] or 1, most = most,
    held_until = hold > now_ms and hold or 0, starts_at = starts_at > now_ms and starts_at or 0, ordered = flags > 3,
    starts = rate[2], span_ms = rate[3], most_waiting = own[5] or all[5], oldest = waiting > 0 and head_of(key, head, tail) or '',
  }
end
