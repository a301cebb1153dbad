-- flow: the stored facts of a flow and its steps. A damaged value counts as missing, so that no script fails.
-- needs: meta steps
-- subs: steps that are flows and have not begun.
local NUMBERS = {'keep', 'begun', 'over', 'bits', 'open', 'failed', 'retried', 'bytes', 'stamp', 'refused', 'subs'}
-- cut: 0 unless the flow was cancelled before the step ended; else 1 plus the number of members dead at the cancel.
-- revived: the latest retry has revived the dead members before this member.
local COUNTS = {'size', 'ndone', 'nended', 'sealed', 'ready_at', 'ended_at', 'chunks', 'added_at', 'nretried', 'cut', 'revived'}
-- MARK and a step: the entry that the step's latest retry wrote to the outbox of the step's queue.
local FOLLOWS, ROOTS, ALL, MARK, LARGEST, MAX_BITS = '>', '>', '*', 'm:', 9007199254740991, 33554432

local function count_in(value)
  local number = tonumber(value)
  return number and number >= 0 and number <= LARGEST and math.floor(number) or 0
end

local function text(number) return string.format('%.0f', number) end

-- Whether the entry `id` of a stream comes after the entry `other`; true if `other` isn't the id of an entry.
local function is_behind(id, other)
  local ms, sequence = string.match(id, '^(%d+)%-(%d+)$')
  local other_ms, last = string.match(other, '^(%d+)%-(%d+)$')
  ms, sequence, other_ms, last = tonumber(ms) or 0, tonumber(sequence) or 0, tonumber(other_ms) or -1, tonumber(last) or -1
  return ms > other_ms or ms == other_ms and sequence > last
end

-- Return the flow; nil if it is gone. run_id: the expected run, because a flow may have been removed and started again
-- under its id; '' or nil: any run.
local function read_flow(run_id)
  local values = redis.call('HMGET', meta, 'state', 'home', 'parent', 'said', 'run', unpack(NUMBERS))
  local run = values[5] or ''
  if not values[1] or (run_id or '') ~= '' and run_id ~= run then return nil end
  local flow = {state = values[1], home = values[2] or '', parent = values[3] or '', said = values[4] or '', run = run, was = {}}
  for i, name in ipairs(NUMBERS) do flow[name] = count_in(values[i + 5]) end
  for name, value in pairs(flow) do flow.was[name] = value end
  return flow
end

-- The numbers of a step's members in the flow: extents, {first, length}, in the order of the members.
local function extents_in(value)
  local extents = {}
  for first, length in string.gmatch(value or '', '(%d+):(%d+)') do
    extents[#extents + 1] = {count_in(first), count_in(length)}
  end
  return extents
end

local known = {}
-- Return a step, or false if it doesn't exist. Each step is read once.
local function step_of(name)
  local s = known[name]
  if s ~= nil then return s end
  local row = string.find(name, '^[%w_-]+$') and redis.call('HGET', steps, name)
  local kind, queue, source, edges = string.match(row or '', '^(%l+)\31([^\31]*)\31([^\31]*)\31([^\31]*)\31')
  if not kind then
    known[name] = false
    return false
  end
  s = {name = name, kind = kind, queue = queue, source = source, edges = edges}
  local values, i = redis.call('HMGET', meta, 'n:' .. name, 'x:' .. name), 0
  for number in string.gmatch(values[1] or '', '%d+') do
    i = i + 1
    if COUNTS[i] then s[COUNTS[i]] = count_in(number) end
  end
  for _, field in ipairs(COUNTS) do s[field] = s[field] or 0 end
  s.extents = extents_in(values[2])
  known[name] = s
  return s
end

-- Return a member's number in the flow; nil if no number was given.
local function bit_of(s, number)
  if number >= s.size then return nil end
  for _, extent in ipairs(s.extents) do
    if number < extent[2] then
      local bit = extent[1] + number
      return bit < MAX_BITS and bit or nil
    end
    number = number - extent[2]
  end
  return nil
end

local function is_over(s) return s.ready_at > 0 and s.sealed == 1 and s.nended >= s.size end
local function is_done(s) return s.ready_at > 0 and s.sealed == 1 and s.ndone >= s.size end

local function counts_text(s)
  local parts = {}
  for i, field in ipairs(COUNTS) do parts[i] = text(s[field]) end
  return table.concat(parts, ',')
end

-- Write the changes with as few commands as possible.
local function write_flow(flow)
  local changed = {}
  for name, value in pairs(flow) do
    if name ~= 'was' and flow.was[name] ~= value then
      changed[#changed + 1] = name
      changed[#changed + 1] = type(value) == 'number' and text(value) or value
    end
  end
  for name, s in pairs(known) do
    if s and s.changed then
      changed[#changed + 1] = 'n:' .. name
      changed[#changed + 1] = counts_text(s)
    end
  end
  for i = 1, #changed, 1000 do redis.call('HSET', meta, unpack(changed, i, math.min(i + 999, #changed))) end
  return #changed > 0
end
