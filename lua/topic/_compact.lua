-- compact: one step of a compaction: scan keys of the log up to the cut, copy surviving messages, swap, trim the log.
-- needs: meta log base clean newest entries index_of now_ms state text
local SCAN, COPY, TRIM = 1, 2, 3

local function field(entry, name)
  for i = 1, #entry[2], 2 do if entry[2][i] == name then return entry[2][i + 1] end end
end

local function scan(limit)
  local page = entries(state.at, state.cut, limit)
  for _, entry in ipairs(page) do
    local key, index = field(entry, 'k'), index_of(entry)
    if key then redis.call('HSET', newest, key, index) end
    state.at = index + 1
  end
  if #page == 0 then state.phase, state.at = COPY, state.first end
end

local function survives(entry)
  local key = field(entry, 'k')
  if not key then return true end
  local last = tonumber(redis.call('HGET', newest, key))
  if last and last > index_of(entry) then return false end
  return field(entry, 'm') or tonumber(string.match(entry[1], '%d+$')) > now_ms - state.tombstone_ms
end

local function swap()
  redis.call('UNLINK', base)
  redis.call('UNLINK', newest)
  if redis.call('EXISTS', clean) == 1 then redis.call('RENAME', clean, base) end
  redis.call('XTRIM', base, 'MINID', text(state.first))
  state.base_to, state.phase = state.cut, TRIM
end

local function copy(limit)
  local page = entries(state.at, state.cut, limit)
  for _, entry in ipairs(page) do
    -- An entry with more fields than Lua can pass on isn't our message.
    if #entry[2] <= 1000 and survives(entry) then
      -- If the entries are rejected as out of order, another program wrote there, and the next step starts again.
      if redis.pcall('XADD', clean, entry[1], unpack(entry[2])).err then
        state.phase = 0
        return
      end
    end
    state.at = index_of(entry) + 1
  end
  if #page == 0 then swap() end
end

local function trim(limit)
  local oldest = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
  local upto = math.min(state.base_to + 1, oldest and index_of(oldest) + 10 * limit or math.huge)
  redis.call('XTRIM', log, 'MINID', text(upto))
  if upto > state.base_to then state.phase = 0 end
end

local function begin_compaction()
  if state.phase > 0 or state.last <= state.base_to then return end
  redis.call('UNLINK', clean)
  redis.call('UNLINK', newest)
  state.phase, state.cut, state.at = SCAN, state.last, math.max(state.base_to + 1, state.first)
end

local function compaction_step(limit)
  local steps = {[SCAN] = scan, [COPY] = copy, [TRIM] = trim}
  if state.phase > 0 then steps[state.phase](limit) end
  redis.call('HSET', meta, 'phase', state.phase, 'cut', state.cut, 'at', state.at, 'base_to', state.base_to)
end
