-- handout: what a poll gives: a stretch whose lease has ended, else the next after the cursor.
-- needs: state entries index_of batch_of hold let_go leases group cursor out_of_range token count now_ms
local function take_over(given)
  for _ = 1, 16 do
    local old = redis.call('ZRANGE', leases, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, 1)[1]
    if not old then return end
    local first, last, deliveries = batch_of(old)
    local found = entries(first, last, count)
    let_go(old)
    -- Nothing is left of one that retention or compaction removed meanwhile.
    if #found > 0 then
      given.entries, given.first, given.deliveries = found, first, deliveries + 1
      given.last = last
      local upto = index_of(found[#found])
      if #entries(upto + 1, last, 1) > 0 then
        given.last = upto
        hold(token .. '+', upto + 1, last, deliveries, now_ms)
      end
      return
    end
  end
end

local function move_to(index)
  cursor = index
  redis.call('HSET', group, 'cursor', cursor)
end

-- Whether the cursor is within the topic, by the group's rule if need be.
local function in_range(given)
  local before = state.first - 1
  if cursor >= before and cursor <= state.last then return true end
  if out_of_range == 'error' then return false end
  given.skipped = math.max(0, before - cursor)
  if out_of_range == 'latest' then
    given.skipped = math.max(0, state.last - cursor)
    move_to(state.last)
  else
    move_to(before)
  end
  if given.skipped > 0 then redis.call('HINCRBY', group, 'skipped', given.skipped) end
  return true
end

local function take_new(given)
  if cursor >= state.last then return end
  local found = entries(cursor + 1, state.last, count)
  if #found > 0 then
    given.entries, given.first, given.last, given.deliveries = found, cursor + 1, index_of(found[#found]), 1
    move_to(given.last)
  else
    move_to(state.last)
  end
end
