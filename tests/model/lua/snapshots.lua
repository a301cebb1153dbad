-- snapshots: remember, restore and compare whole databases; write one as canonical text.
-- Values are shared between snapshots until somebody writes to them (see `own` in mini_redis).
local R = ...
local S = {kept = {}, free = {}}

function S.take()
  local copy = {}
  for key, value in pairs(R.db) do
    value.shared = true
    copy[key] = value
  end
  local id = table.remove(S.free) or #S.kept + 1
  S.kept[id] = copy
  return id
end

function S.put(id)
  local db = {}
  for key, value in pairs(S.kept[id]) do db[key] = value end
  R.db = db
end

function S.drop(id)
  S.kept[id] = false
  S.free[#S.free + 1] = id
end

local function left_ms(at) return string.format('%.0f', math.max(0, at - R.now)) end

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

-- Only what steers later replies: the fence just counts, and the floor matters when the clock steps back.
local function settings(value)
  local floor = tonumber(value.m.floor) or 0
  local ahead = floor > R.now and '+' .. left_ms(floor) or ''
  return table.concat({value.m.paused or '', value.m.events or '', value.m.max_lease or '', value.m.deduped or '', ahead}, ' ')
end

-- number 0x1e words 0x1e hand-outs: of these only whose they are
local function call_record(value)
  local head, rows = string.match(value.s, '^(x?%d*\30[^\30]*\30)(.*)$')
  local mids = string.gsub(rows .. '\31', '([^\31]*)\31', function(item)
    return string.match(item, '^m%d$') and item .. ' ' or ''
  end)
  return string.gsub(head, '^(x?)%d+', '%1') .. mids
end

local renderers = {
  locks = times, backoffs = times, due = waiting, meta = settings,
  requeue = function(value)
    local text = pairs_of(value)
    return (string.gsub(text, '=(%d+),', function(at) return '=' .. left_ms(at) .. ',' end))
  end,
  eoq_backoff = function(value) return left_ms(value.px) end,
  ndry_runs = function(value) return value.s end,
  dead = function(value) return table.concat(R.members(value), ' ') end,
  wake = function() return '1' end,
  events = function() return '' end,
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

-- Times relative to now, tokens and contents named by the order they appear in: two databases that behave alike read alike.
function S.canonical(more, with_calls)
  local parts, last_number = {}, {}
  for _, key in ipairs(keys()) do
    local is_call = string.sub(key, 1, 5) == 'call:'
    if not is_call then
      parts[#parts + 1] = key .. ':' .. (renderers[key] or plain)(R.db[key])
    elseif with_calls then
      parts[#parts + 1] = key .. ':' .. call_record(R.db[key])
      last_number[string.sub(key, 6)] = string.match(R.db[key].s, '%d+')
    end
  end
  parts[#parts + 1] = more
  local names, ntokens, ncontents = {}, 0, 0
  local text = string.gsub(table.concat(parts, '\n'), '%u%.%d+%.%d+', function(token)
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
    if string.sub(key, 1, 5) ~= 'call:' then names[#names + 1] = key end
  end
  table.sort(names)
  for _, key in ipairs(names) do
    parts[#parts + 1] = key .. ':' .. plain(db[key]) .. ' ' .. tostring(db[key].px)
  end
  return table.concat(parts, '\n')
end

function S.unchanged_since(id)
  local before, same = S.kept[id], true
  for key, value in pairs(R.db) do
    if before[key] ~= value and string.sub(key, 1, 5) ~= 'call:' then same = false end
  end
  for key in pairs(before) do
    if not R.db[key] and string.sub(key, 1, 5) ~= 'call:' then same = false end
  end
  return same or raw(before) == raw(R.db)
end

return S
