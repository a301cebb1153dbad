-- snapshots: remember, restore and compare whole databases; write one as canonical text.
-- One is open: its values are shared with the database until somebody writes to them (see `own` in mini_redis).
-- The others wait as strings where the machine can make some: thousands of live tables would slow every call.
local R = ...
local S = {kept = {}, free = {}, base = {}}

local found, buffers = pcall(require, 'string.buffer')
local FIELDS = {'t', 'n', 's', 'px', 'm', 'a', 'shared', 'text'}
local buffer = found and buffers.new({dict = FIELDS})

function S.take()
  local copy = {}
  for key in pairs(R.db) do
    local value = R.look(key)
    if value then
      value.shared = true
      copy[key] = value
    end
  end
  local id = table.remove(S.free) or #S.kept + 1
  S.kept[id] = buffer and buffer:reset():encode(copy):get() or copy
  return id
end

-- Make `id` the snapshot that put goes back to; it is kept no longer.
function S.open(id)
  S.base = buffer and buffer:set(S.kept[id]):decode() or S.kept[id]
  S.kept[id] = false
  S.free[#S.free + 1] = id
end

function S.put()
  local db = {}
  for key, value in pairs(S.base) do db[key] = value end
  R.db, R.for_flows = db, {}
end

local calls = {}
local function is_call(key)
  if calls[key] == nil then calls[key] = string.find(key, 'call:', 1, true) ~= nil end
  return calls[key]
end

local function left_ms(at) return R.text_of(math.max(0, at - R.now)) end

local function pairs_of(value)
  if value.text then return value.text end
  local parts = {}
  for _, name in ipairs(R.members(value)) do parts[#parts + 1] = name .. '=' .. tostring(value.m[name]) end
  local text = table.concat(parts, ' ')
  if value.shared then value.text = text end
  return text
end

local function times(value)
  local parts = {}
  for _, name in ipairs(R.members(value)) do parts[#parts + 1] = name .. '=' .. left_ms(value.m[name]) end
  return table.concat(parts, ' ')
end

local function waiting(value)
  local parts = {}
  for _, name in ipairs(R.ordered(value)) do parts[#parts + 1] = name .. '=' .. left_ms(value.m[name]) end
  return table.concat(parts, ' ')
end

-- Only the facts that affect later replies: the fence just counts, and the floor matters when the clock steps back.
local function settings(value)
  local floor = tonumber(value.m.floor) or 0
  local ahead = floor > R.now and '+' .. left_ms(floor) or ''
  -- Decides when the circle is walked, if that isn't in each call.
  if S.dequeued and S.dequeued > 1 then
    local since = R.now - (tonumber(value.m.walked) or 0)
    ahead = ahead .. ' ' .. (tonumber(value.m.fence) or 0) % S.dequeued .. ' ' .. math.min(since, S.walk_ms)
  end
  return table.concat({value.m.plain_until and 'plain' or '', value.m.turn and 'keyed' or '', value.m.members and 'flows' or '', value.m.max or '', value.m.paused or '', value.m.pause_ends and left_ms(value.m.pause_ends) or '', value.m.events or '', value.m.max_lease or '', value.m.deduped or '', ahead}, ' ')
end

-- number 0x1e words 0x1e hand-outs: of these only whose they are
local function call_record(value)
  local head, rows = string.match(value.s, '^(x?%d*\30[^\30]*\30)(.*)$')
  local mids = string.gsub(rows .. '\31', '([^\31]*)\31', function(item)
    local mid = string.match(item, '^[m~]%d$') or string.match(item, '^([m~]%d)\29')
    return mid and mid .. ' ' or ''
  end)
  return string.gsub(head, '^(x?)%d+', '%1') .. mids
end

-- A time before the queue's virtual time counts as equal to it.
local function since_turn(pass) return R.text_of(math.max(-1, pass - (tonumber(R.db.meta and R.db.meta.m.turn) or 0))) end

-- Places count from the head of a line, turns from the queue's, moments from now.
local heads_of = {}
local function key_states(value)
  local parts = {}
  heads_of = {}
  for _, key in ipairs(R.members(value)) do
    local head, tail, waiting, running, pass, tat, hold, flags = S.struct.unpack('<dddddddB', value.m[key])
    heads_of[key] = head
    if key == '' then head, tail, waiting = 0, 0, 0 end
    parts[#parts + 1] = table.concat({key, tail - head, waiting, running, since_turn(pass), math.max(0, tat - R.now * 1000),
      left_ms(hold), flags}, ',')
  end
  return table.concat(parts, ' ')
end

local function relative(text, pattern)
  return (string.gsub(text, pattern, function(before, slot, between, key)
    return before .. R.text_of(tonumber(slot) - (heads_of[key] or 0)) .. between .. key
  end))
end

local function line_places(value)
  local parts = {}
  for place, mid in pairs(value.m) do parts[#parts + 1] = relative(place, '^(o?)(%-?%d+)(:)(.+)$') .. '=' .. mid end
  table.sort(parts)
  return table.concat(parts, ' ')
end

-- The slot of a message without a line is meaningless.
local function options_of(value)
  local parts, lined = {}, {}
  for _, mid in pairs(R.db.lines and R.db.lines.m or {}) do lined[mid] = true end
  for _, mid in ipairs(R.members(value)) do
    local own = value.m[mid]
    if lined[mid] then
      own = relative(own, '^(%d*,%d*,o?)(%-?%d+)(,)(.+)$')
    else
      own = string.gsub(own, '^(%d*,%d*,o?)%-?%d*,', '%1,')
    end
    parts[#parts + 1] = mid .. '=' .. own
  end
  return table.concat(parts, ' ')
end

local function key_turns(value)
  local parts = {}
  for _, name in ipairs(R.ordered(value)) do parts[#parts + 1] = name .. '=' .. since_turn(value.m[name]) end
  return table.concat(parts, ' ')
end

local renderers = {
  keys = key_states, lines = line_places, options = options_of, turns = key_turns, rests = waiting,
  locks = times, backoffs = times, due = waiting, meta = settings,
  requeue = function(value)
    local text = pairs_of(value)
    return (string.gsub(text, '=(%d+),', function(at) return '=' .. left_ms(at) .. ',' end))
  end,
  options = function(value)
    local text = pairs_of(value)
    return (string.gsub(text, '([@<>])(%d+)', function(sign, at) return sign .. left_ms(at) end))
  end,
  eoq_backoff = function(value) return left_ms(value.px) end,
  ndry_runs = function(value) return value.s end,
  dead = function(value) return table.concat(R.members(value), ' ') end,
  -- The world's text says what was taken out.
  bin = function(value) return tostring(value.n) end,
  wake = function() return '1' end,
  events = function() return '' end,
  -- The world's text says where the last tick is.
  ticks = function(value) return (string.gsub(pairs_of(value), '=%d+,', '=')) end,
  tick_log = function() return '' end,
}
local function plain(value)
  if value.t == 'list' then return table.concat(value.a, ' ') end
  return value.t == 'string' and value.s or pairs_of(value)
end

local function keys()
  local names = {}
  for key in pairs(R.db) do if R.look(key) then names[#names + 1] = key end end
  table.sort(names)
  return names
end
S.keys = keys

-- Every key seen so far, in order, with the prefix of its value.
local known, order, heads, render = {}, {}, {}, {}
local function in_order()
  for key in pairs(R.db) do
    if not known[key] then
      known[key], order[#order + 1], heads[key] = true, key, key .. ':'
      render[key] = renderers[string.match(key, '^%d?/?([%w_]+)$')] or plain
      table.sort(order)
    end
  end
  return order
end

-- Times relative to now, tokens and contents named by the order they appear in: two databases that behave alike read alike.
function S.canonical(more, with_calls)
  local parts, last_number, n = {}, {}, 0
  for _, key in ipairs(in_order()) do
    local value = R.db[key]
    if not value or (value.px and value.px <= R.now) then
      -- gone
    elseif not is_call(key) then
      parts[n + 1], parts[n + 2], parts[n + 3] = heads[key], render[key](value), '\n'
      n = n + 3
    elseif with_calls then
      parts[n + 1], parts[n + 2], parts[n + 3] = heads[key], call_record(value), '\n'
      n = n + 3
      last_number[string.sub(key, 6)] = string.match(value.s, '%d+')
    end
  end
  parts[n + 1] = more
  local names, ntokens, ncontents = {}, 0, 0
  local text = string.gsub(table.concat(parts), '%u%.%d+%.%d+', function(token)
    if names[token] then return names[token] end
    local caller, number = string.match(token, '^(%u)%.(%d+)')
    ntokens = ntokens + 1
    -- A token of its caller's last call may be handed out again by a replay, or returned by a close.
    names[token] = '$' .. ntokens .. (last_number[caller] == number and caller or '')
    return names[token]
  end)
  return (string.gsub(text, 'c%d+', function(content)
    if not names[content] then ncontents = ncontents + 1; names[content] = 'c' .. ncontents end
    return names[content]
  end))
end

-- The database as it is, but for the callers' records and the event stream.
local function raw(db)
  local parts, names = {}, {}
  for key in pairs(db) do
    if not is_call(key) then names[#names + 1] = key end
  end
  table.sort(names)
  for _, key in ipairs(names) do
    parts[#parts + 1] = key .. ':' .. plain(db[key]) .. ' ' .. tostring(db[key].px)
  end
  return table.concat(parts, '\n')
end

-- All of it as text; bits as numbers.
function S.whole()
  return (string.gsub(raw(R.db), '[\128-\255]', function(byte) return '<' .. string.byte(byte) .. '>' end))
end

-- Whether the database is as the open snapshot has it.
function S.unchanged()
  local same = true
  for key, value in pairs(R.db) do
    if S.base[key] ~= value and not is_call(key) then same = false end
  end
  for key in pairs(S.base) do
    if not R.db[key] and not is_call(key) then same = false end
  end
  return same or raw(S.base) == raw(R.db)
end

return S
