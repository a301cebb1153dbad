-- mini_redis: the commands that lua/queue uses, over plain tables. Unknown commands, undeclared keys,
-- wrong types and wrong numbers raise. A value is copied at its first write after a snapshot shared it.
local R = {db = {}, now = 0, declared = nil, ncalls = 0, nwrites = 0, ntimes = 0, emitted = {}, for_flows = {}}
local commands = {}

local function fail(message) error('redis: ' .. message, 0) end

local function copied(value)
  local fresh = {t = value.t, n = value.n, px = value.px, s = value.s}
  if value.m then
    fresh.m = {}
    for k, v in pairs(value.m) do fresh.m[k] = v end
  end
  if value.a then
    fresh.a = {}
    for i, v in ipairs(value.a) do fresh.a[i] = v end
  end
  return fresh
end

local function look(key, kind)
  local value = R.db[key]
  if value and value.px and value.px <= R.now then
    R.db[key] = nil
    return nil
  end
  if value and kind and value.t ~= kind then fail('WRONGTYPE ' .. key) end
  return value
end

local function own(key, kind)
  local value = look(key, kind)
  if not value then
    value = {t = kind, n = 0}
    if kind == 'list' then value.a = {} elseif kind ~= 'string' then value.m = {} end
    R.db[key] = value
  elseif value.shared then
    value = copied(value)
    R.db[key] = value
  end
  R.nwrites = R.nwrites + 1
  return value
end

local function drop_if_empty(key, value)
  if value.n == 0 then R.db[key] = nil end
end

-- Few numbers are seen, each very often.
local integers, texts = {}, {}
local function integer(text)
  local number = integers[text]
  if not number then
    if not string.match(text, '^%-?%d+$') then fail('value is not an integer: ' .. text) end
    number = tonumber(text)
    integers[text] = number
  end
  return number
end

local function text_of(number)
  local text = texts[number]
  if not text then
    text = string.format(number % 1 == 0 and '%.0f' or '%.17g', number)
    texts[number] = text
  end
  return text
end

-- keys: 'first', 'all' or 'none' of the arguments are keys; least, most: the number of arguments
local function command(name, keys, least, most, run)
  commands[name] = {run = run, keys = keys, least = least, most = most}
end
R.commands = commands
R.command, R.look, R.own, R.drop_if_empty, R.integer, R.text_of, R.fail =
  command, look, own, drop_if_empty, integer, text_of, fail

local function check_declared(key)
  if R.declared and not R.declared[key] then fail('undeclared key ' .. key) end
end

function R.call(name, ...)
  local args, count = {...}, select('#', ...)
  local spec = commands[name] or fail('unknown command ' .. tostring(name))
  if count < spec.least or (spec.most and count > spec.most) then fail('wrong number of arguments for ' .. name) end
  for i = 1, count do
    local kind = type(args[i])
    if kind == 'number' then
      args[i] = text_of(args[i])
    elseif kind ~= 'string' then
      fail('arguments must be strings or integers: ' .. name .. ' #' .. i .. ' is ' .. kind)
    end
  end
  if spec.keys == 'first' then
    check_declared(args[1])
  elseif spec.keys == 'all' then
    for i = 1, count do check_declared(args[i]) end
  end
  R.ncalls = R.ncalls + 1
  return spec.run(args, count)
end

function R.pcall(...)
  local ok, reply = pcall(R.call, ...)
  return ok and reply or (ok and false) or {err = reply}
end

function R.index(list, at)
  at = integer(at)
  return at < 0 and #list + at + 1 or at + 1
end

-- The 1-based, clamped bounds of Redis' start and stop.
function R.bounds(length, start, stop)
  start, stop = integer(start), integer(stop)
  if start < 0 then start = math.max(0, length + start) end
  if stop < 0 then stop = length + stop end
  return start + 1, math.min(stop, length - 1) + 1
end

-- keys and strings
command('TIME', 'none', 0, 0, function()
  R.ntimes = R.ntimes + 1
  return {text_of(math.floor(R.now / 1000)), text_of(R.now % 1000 * 1000)}
end)

command('EXISTS', 'all', 1, nil, function(a)
  local found = 0
  for _, key in ipairs(a) do if look(key) then found = found + 1 end end
  return found
end)

local function delete(a)
  local removed = 0
  for _, key in ipairs(a) do
    if look(key) then
      R.db[key] = nil
      removed, R.nwrites = removed + 1, R.nwrites + 1
    end
  end
  return removed
end
command('DEL', 'all', 1, nil, delete)
command('UNLINK', 'all', 1, nil, delete)

command('STRLEN', 'first', 1, 1, function(a)
  local value = look(a[1], 'string')
  return value and #value.s or 0
end)

command('TYPE', 'first', 1, 1, function(a)
  local value = look(a[1])
  return {ok = value and value.t or 'none'}
end)

command('GET', 'first', 1, 1, function(a)
  local value = look(a[1], 'string')
  return value and value.s or false
end)

command('MGET', 'all', 1, nil, function(a)
  local values = {}
  for i, key in ipairs(a) do
    local value = look(key)
    values[i] = value and value.t == 'string' and value.s or false
  end
  return values
end)

command('SET', 'first', 2, 4, function(a, count)
  if count ~= 2 and not (count == 4 and a[3] == 'PX' and integer(a[4]) > 0) then fail('syntax error: SET') end
  if look(a[1]) and look(a[1]).t ~= 'string' then R.db[a[1]] = nil end
  local value = own(a[1], 'string')
  value.s, value.n, value.px = a[2], 1, a[4] and R.now + integer(a[4]) or nil
  return {ok = 'OK'}
end)

command('INCR', 'first', 1, 1, function(a)
  local value = look(a[1], 'string')
  local sum = integer(value and value.s or '0') + 1
  value = own(a[1], 'string')
  value.s, value.n = text_of(sum), 1
  return tonumber(value.s)
end)

command('PTTL', 'first', 1, 1, function(a)
  local value = look(a[1])
  return not value and -2 or value.px and value.px - R.now or -1
end)

command('PEXPIRE', 'first', 2, 2, function(a)
  local value = look(a[1])
  if not value then return 0 end
  value = own(a[1], value.t)
  value.px = R.now + integer(a[2])
  if value.px <= R.now then R.db[a[1]] = nil end
  return 1
end)

-- the event stream: entries are only shown to the explorer, as `emitted`
command('XADD', 'first', 4, 7, function(a)
  local trims = a[2] == 'MAXLEN' and a[3] == '~' and a[5] == '*'
  if not trims and (#a ~= 4 or a[2] ~= '*') then fail('XADD neither with MAXLEN ~ n * nor with *') end
  R.nwrites = R.nwrites + 1
  R.emitted[#R.emitted + 1] = a[#a]
  return '0-' .. #R.emitted
end)

return R
