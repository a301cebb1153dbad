-- host: the scripts of lua/reliable over the model's mini-Redis, its databases as text, and what must hold in each.
local R = ...
local M, scripts = {}, {}
local PLACES = {'undelivered', 'tickets', 'delivered', 'messages', 'unacked', 'tokens', 'dead', 'meta'}

R.command('ZMSCORE', 'first', 2, nil, function(a, count)
  local value, reply = R.look(a[1], 'zset'), {}
  for i = 2, count do reply[i - 1] = value and value.m[a[i]] and R.text_of(value.m[a[i]]) or false end
  return reply
end)

local env = {redis = {call = R.call, error_reply = function(text) return {err = text} end}}
for _, name in ipairs({'string', 'table', 'math', 'tonumber', 'ipairs', 'unpack'}) do env[name] = _G[name] end

function M.load(name, text)
  scripts[name] = assert(loadstring(text, '=' .. name .. '.lua'))
  setfenv(scripts[name], env)
end

-- A database remembered: its values are shared until somebody writes to them (see `own` in mini_redis).
local opened

function M.take()
  local copy = {}
  for key, value in pairs(R.db) do
    value.shared = true
    copy[key] = value
  end
  return copy
end

function M.open(copy) opened = copy end

function M.put()
  R.db = {}
  for key, value in pairs(opened) do R.db[key] = value end
end

-- One call, numbered when it has a caller. -> its reply, rows as tables
function M.run(name, caller, number, now, ...)
  local keys, args = {unpack(PLACES)}, {...}
  if caller ~= '' then
    keys[9] = 'call:' .. caller
    table.insert(args, 1, now)
    table.insert(args, 1, number)
  end
  R.now, R.declared = tonumber(now), {}
  for _, key in ipairs(keys) do R.declared[key] = true end
  env.KEYS, env.ARGV = keys, args
  local reply = scripts[name]()
  R.declared = nil
  if type(reply) == 'table' and reply.err then error(reply.err, 0) end
  return reply
end

-- A client at the head of the line is given the first ticket, or nothing.
function M.give_ticket()
  return R.look('tickets') and R.call('LPOP', 'tickets') or nil
end

local function sorted_hash(key)
  local parts = {}
  local value = R.look(key)
  for _, name in ipairs(R.members(value)) do parts[#parts + 1] = name .. '=' .. value.m[name] end
  return table.concat(parts, ' ')
end

-- Two databases that behave alike read alike: ages up to where they matter instead of times, no callers' records.
function M.text(now, aged, missed)
  local function age(at, horizon) return math.min(horizon, math.max(0, now - math.floor(at))) end
  local parts = {}
  for _, key in ipairs({'undelivered', 'tickets'}) do
    parts[#parts + 1] = R.db[key] and table.concat(R.db[key].a, ' ') or ''
  end
  for _, id in ipairs(R.ordered(R.look('delivered'))) do parts[#parts + 1] = id .. '@' .. age(R.db.delivered.m[id], aged) end
  for _, key in ipairs({'messages', 'unacked', 'tokens'}) do parts[#parts + 1] = sorted_hash(key) end
  parts[#parts + 1] = table.concat(R.members(R.look('dead')), ' ')
  local meta = R.look('meta')
  parts[#parts + 1] = meta and age(tonumber(meta.m.issued_at) or 0, missed) or ''
  return table.concat(parts, '\n')
end

-- '' or what is wrong: every message is in exactly one place, nobody holds what isn't delivered.
function M.broken(live)
  local places, count = {}, 0
  local function put(id, place)
    if places[id] then return id .. ' is in ' .. places[id] .. ' and ' .. place end
    places[id], count = place, count + 1
  end
  for _, id in ipairs(R.db.undelivered and R.db.undelivered.a or {}) do
    local wrong = put(id, 'undelivered')
    if wrong then return wrong end
  end
  for _, place in ipairs({'delivered', 'dead'}) do
    for _, id in ipairs(R.members(R.look(place))) do
      local wrong = put(id, place)
      if wrong then return wrong end
    end
  end
  for id in string.gmatch(live, '%S+') do
    if not places[id] then return id .. ' is lost' end
    if not (R.look('messages') and R.db.messages.m[id]) then return id .. ' has no content' end
    count = count - 1
  end
  if count ~= 0 then return 'what was acknowledged is still there' end
  for _, id in ipairs(R.members(R.look('tokens'))) do
    if places[id] ~= 'delivered' then return id .. ' has a holder and is ' .. tostring(places[id]) end
  end
  for _, id in ipairs(R.members(R.look('unacked'))) do
    if not places[id] then return id .. ' is counted and gone' end
  end
  for _, key in ipairs({'delivered', 'undelivered', 'tickets', 'messages', 'tokens', 'unacked', 'dead'}) do
    if R.db[key] and R.db[key].n == 0 then return key .. ' is empty and there' end
  end
  return ''
end

return M
