-- entries: messages by index: those up to base_to from the compacted part, the others from the log.
-- needs: log base state text
local function index_of(entry) return tonumber(string.match(entry[1], '^%d+')) end

-- Only meta was lost: an index must not be reused. The streams know their last indexes, even of trimmed entries.
state.healed = state.last == 0 and redis.call('EXISTS', log, base) > 0
if state.healed then
  local function newest_and_oldest(stream)
    if redis.call('EXISTS', stream) == 0 then return 0, 1 end
    local newest, info = 0, redis.call('XINFO', 'STREAM', stream)
    for i = 1, #info, 2 do
      if info[i] == 'last-generated-id' then newest = index_of({info[i + 1]}) end
    end
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    return newest, oldest and index_of(oldest) or newest + 1
  end
  local base_first, log_first
  state.base_to, base_first = newest_and_oldest(base)
  state.last, log_first = newest_and_oldest(log)
  state.last = math.max(state.last, state.base_to)
  state.first = base_first <= state.base_to and base_first or math.max(log_first, base_first)
  -- The longest entry is unknown: assume the limit of content.
  state.longest = 1048576
end

local function size_of(entry)
  local size = 0
  for i = 2, #entry[2], 2 do size = size + #entry[2][i] end
  return size
end

-- At most `count`, and about 4 MiB or `most`, of the messages from `from` to `to`, as XRANGE gives them.
local function entries(from, to, count, most)
  local taken, size, longest = {}, 0, math.max(1, state.longest)
  from, to = math.max(from, state.first), math.min(to, state.last)
  while from <= to and #taken < count do
    local room = math.floor(((most or 4194304) - size) / longest)
    if room < 1 and #taken > 0 then break end
    local wanted, compacted = math.max(1, math.min(count - #taken, room)), from <= state.base_to
    local page = redis.call('XRANGE', compacted and base or log, text(from),
      text(compacted and math.min(to, state.base_to) or to), 'COUNT', wanted)
    for _, entry in ipairs(page) do
      taken[#taken + 1] = entry
      if room < count then size = size + size_of(entry) end
    end
    if #page == wanted then
      from = index_of(page[#page]) + 1
    elseif compacted then
      from = state.base_to + 1
    else
      break
    end
  end
  return taken
end
