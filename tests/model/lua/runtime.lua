-- runtime: the engine's scripts, run against mini_redis.
local R, S = ...
local M = {}
local scripts, undeclared = {}, false
-- Commands that one call may send in these scopes: c + k * limit, for a handful of mids (I18).
local COST_LIMIT = 140

-- Whether scripts may touch keys that they don't declare.
function M.undeclared(allowed) undeclared = allowed end

-- The server's struct, for the one format that the scripts use: seven whole numbers of 8 bytes each, and a byte.
local struct = {}
function struct.pack(format, ...)
  assert(format == '<dddddddB')
  local parts, numbers = {}, {...}
  for i = 1, 7 do
    local digits = string.format('%016.0f', numbers[i] + 4e15)
    parts[i] = string.gsub(digits, '%d%d', function(pair) return string.char(pair + 1) end)
  end
  return table.concat(parts) .. string.char(numbers[8])
end

function struct.unpack(format, text)
  assert(format == '<dddddddB' and #text == 57)
  local numbers = {}
  for i = 1, 7 do
    local number = 0
    for place = 8 * i - 7, 8 * i do number = number * 100 + string.byte(text, place) - 1 end
    numbers[i] = number - 4e15
  end
  numbers[8] = string.byte(text, 57)
  return unpack(numbers)
end
M.struct = struct

-- The server's cjson, for the one member that definitions of schedules have here.
local cjson = {}
function cjson.decode(text) return {cron = assert(string.match(text, '^{"cron": "(%w+)"}$'))} end

local env = {struct = struct, cjson = cjson, redis = {call = R.call, pcall = R.pcall, error_reply = function(text) return {err = text} end}}
for _, name in ipairs({'string', 'table', 'math', 'tonumber', 'tostring', 'ipairs', 'pairs', 'unpack', 'select',
  'type', 'error', 'assert', 'pcall', 'next'}) do
  env[name] = _G[name]
end
setmetatable(env, {
  __index = function(_, name) error('no global ' .. name, 2) end,
  __newindex = function(_, name, value)
    if name ~= 'KEYS' and name ~= 'ARGV' then error('a script must not make the global ' .. name, 2) end
    rawset(env, name, value)
  end,
})

function M.load(name, text, keys)
  local chunk = assert(loadstring(text, '=' .. name .. '.lua'))
  setfenv(chunk, env)
  scripts[name] = {chunk = chunk, keys = keys, bound = {}}
end

-- more: a key after the keys that the script binds
local function bound_keys(script, caller, more)
  local found = script.bound[caller .. more]
  if not found then
    found = {names = {}, declared = {}}
    for key in string.gmatch(script.keys .. ' ' .. more, '[^ ]+') do
      key = string.gsub(key, 'last_call$', 'call:' .. caller)
      found.names[#found.names + 1] = key
      found.declared[key] = true
    end
    script.bound[caller .. more] = found
  end
  return found
end

-- Run one script, atomically, at `now`; a further key may follow its name. -> its reply, item by item
function M.run(name, caller, now, ...)
  local base, behind = string.match(name, '^([^ ]+) (.*)$')
  name = base or name
  local script = scripts[name]
  local again = name == 'enqueue' and select(8, ...) or ''
  local more = again == 'next' and 'last_dead accepted' or again == 'member' and 'last_dead' or ''
  more = behind or more
  local keys = bound_keys(script, caller, more)
  R.now, R.declared, R.emitted = now, not undeclared and keys.declared or nil, {}
  R.ncalls, R.nwrites, R.ntimes = 0, 0, 0
  env.KEYS, env.ARGV = keys.names, {...}
  local reply = script.chunk()
  R.declared = nil
  if undeclared then return unpack(reply) end
  if R.ncalls > COST_LIMIT then error('I18 ' .. name .. ' sent ' .. R.ncalls .. ' commands', 0) end
  if R.ntimes > 1 then error('I16 ' .. name .. ' read the clock ' .. R.ntimes .. ' times', 0) end
  if type(reply) ~= 'table' then return reply end
  if reply.err then error(reply.err, 0) end
  return unpack(reply)
end

function M.for_flows()
  local text = table.concat(R.for_flows, '\30')
  R.for_flows = {}
  return text
end

function M.emitted() return table.concat(R.emitted, '\n') end
function M.writes() return R.nwrites end

function M.reset() R.db = {} end

-- One plain command by a client.
function M.command(now, ...)
  R.now, R.declared = now, nil
  return R.call(...)
end

function M.forget(...)
  for i = 1, select('#', ...) do R.db[select(i, ...)] = nil end
end

-- The next moment at which some reply may change: `margin` before and at the end of a lock, a backoff, a rest.
function M.next_time(now, margin)
  local best
  local function meet(at)
    at = tonumber(at)
    for _, moment in ipairs({at - margin, at}) do
      if moment > now and (not best or moment < best) then best = moment end
    end
  end
  for _, key in ipairs({'locks', 'backoffs', 'rests'}) do
    for _, at in pairs(R.db[key] and R.db[key].m or {}) do meet(at) end
  end
  if R.db.meta and R.db.meta.m.pause_ends then meet(R.db.meta.m.pause_ends) end
  local rest = R.db.eoq_backoff
  if rest and rest.px > now and (not best or rest.px < best) then best = rest.px end
  return best or 0
end

-- Required state when all work is done: keys with a TTL, the events, the dead, a few totals.
function M.leftovers()
  local left = {}
  for _, key in ipairs(S.keys()) do
    local spared = R.db[key].px or key == 'events' or key == 'meta' or key == 'wake'
      or key == 'dead' or key == 'dead_messages' or key == 'last_dead' or key == 'schedules' or key == 'ticks' or key == 'tick_log' or key == 'rules' or key == 'entries'
    if not spared then left[#left + 1] = key end
  end
  local meta = R.db.meta and R.db.meta.m or {}
  if (meta.deduped or '0') ~= '0' then left[#left + 1] = 'meta.deduped=' .. meta.deduped end
  return table.concat(left, ' ')
end

return M
