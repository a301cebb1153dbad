-- handout: the messages of a poll: a batch whose lease has ended, or the next messages after the cursor.
-- needs: log base group leases batch_of entries hold index_of let_go now_ms out_of_range skipped_before state text cursor
-- In other scripts, the messages were read before the first write.
local function check_streams()
  redis.call('XLEN', log)
  redis.call('XLEN', base)
end

-- `commit`: the batch that this call commits; `token`: of the batch that it returns.
local function take_over(given, token, count, commit)
  for _ = 1, 16 do
    local old, another = unpack(redis.call('ZRANGE', leases, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, 2))
    if old == commit then old = another end
    if not old then return end
    local first, last, deliveries = batch_of(old)
    local batch = first and entries(first, last, count) or {}
    local upto = #batch > 0 and index_of(batch[#batch])
    local more = upto and #entries(upto + 1, last, 1) > 0
    if not upto then check_streams() end
    let_go(old)
    -- A batch that retention or compaction has removed has no messages left.
    if upto then
      given.entries, given.first, given.deliveries = batch, first, deliveries + 1
      given.last = last
      if more then
        given.last = upto
        hold(token .. '+', upto + 1, last, deliveries, now_ms)
      end
      return
    end
  end
end

local function move_to(index)
  cursor = index
  redis.call('HSET', group, 'cursor', text(cursor))
end

-- Whether the cursor is within the topic, if necessary after the group's rule moved it.
local function in_range(given)
  local before = state.first - 1
  if cursor >= before and cursor <= state.last then return true end
  if out_of_range == 'error' then return false end
  check_streams()
  given.skipped = math.max(0, before - cursor)
  if out_of_range == 'latest' then
    given.skipped = math.max(0, state.last - cursor)
    move_to(state.last)
  else
    move_to(before)
  end
  if given.skipped > 0 then
    local total = tonumber(skipped_before)
    if not total or not (total >= 0 and total <= 9007199254740000) then total = 0 end
    redis.call('HSET', group, 'skipped', text(total + given.skipped))
  end
  return true
end

local function take_new(given, count)
  if cursor >= state.last then return end
  local batch = entries(cursor + 1, state.last, count)
  if #batch > 0 then
    given.entries, given.first, given.last, given.deliveries = batch, cursor + 1, index_of(batch[#batch]), 1
    move_to(given.last)
  else
    move_to(state.last)
  end
end
