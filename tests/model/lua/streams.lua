-- streams: the stream commands of mini_redis, and RENAME. An entry is {id, {field, value, ...}} and never changes.
-- The engine's XADD, with MAXLEN or an id of the server's, only tells the explorer; see mini_redis. So does that to
-- flow_outbox, which reads as empty.
local R = ...
local command, look, own, integer = R.command, R.look, R.own, R.integer
local tell = R.commands.XADD.run

local function parts(id, missing)
  local first, second = string.match(id, '^(%d+)%-(%d+)$')
  if not first then first, second = string.match(id, '^(%d+)$'), missing end
  if not first then R.fail('Invalid stream ID ' .. id) end
  return tonumber(first), tonumber(second)
end

local function before(a1, a2, b1, b2) return a1 < b1 or (a1 == b1 and a2 < b2) end

command('XADD', 'first', 4, nil, function(a, count)
  if a[1] == 'flow_outbox' then
    R.nwrites = R.nwrites + 1
    R.for_flows[#R.for_flows + 1] = a[#a]
    return '0-' .. #R.for_flows
  end
  if a[2] == 'MAXLEN' or a[2] == '*' then return tell(a, count) end
  if count % 2 == 1 then R.fail('wrong number of arguments for XADD') end
  local first, second = parts(a[2], 0)
  local value = look(a[1], 'stream')
  local last1, last2 = 0, 0
  if value then last1, last2 = parts(value.m.last, 0) end
  if not before(last1, last2, first, second) then R.fail('ID equal or smaller than the target stream top item') end
  value = own(a[1], 'stream')
  value.a = value.a or {}
  local id = R.text_of(first) .. '-' .. R.text_of(second)
  local fields = {}
  for i = 3, count do fields[#fields + 1] = a[i] end
  value.a[#value.a + 1] = {id, fields}
  value.m.last, value.n = id, #value.a
  return id
end)

local function range(key, low, high, limit, from, upto, step)
  local value, reply = look(key, 'stream'), {}
  local low1, low2, high1, high2 = 0, 0, math.huge, 0
  if low ~= '-' then low1, low2 = parts(low, 0) end
  if high ~= '+' then high1, high2 = parts(high, math.huge) end
  local items = value and value.a or {}
  for i = from == 'first' and 1 or #items, upto == 'last' and #items or 1, step do
    local first, second = parts(items[i][1])
    local inside = not before(first, second, low1, low2) and not before(high1, high2, first, second)
    if inside and #reply < limit then reply[#reply + 1] = items[i] end
  end
  return reply
end

local function limit_of(a, count)
  if count == 3 then return math.huge end
  if count ~= 5 or a[4] ~= 'COUNT' then R.fail('syntax error: XRANGE') end
  return math.max(0, integer(a[5]))
end
command('XRANGE', 'first', 3, 5, function(a, count)
  return range(a[1], a[2], a[3], limit_of(a, count), 'first', 'last', 1)
end)
command('XREVRANGE', 'first', 3, 5, function(a, count)
  return range(a[1], a[3], a[2], limit_of(a, count), 'last', 'first', -1)
end)

command('XLEN', 'first', 1, 1, function(a)
  local value = look(a[1], 'stream')
  return value and value.n or 0
end)

command('XTRIM', 'first', 3, 3, function(a)
  if a[2] ~= 'MINID' then R.fail('only XTRIM MINID is modelled') end
  local low1, low2 = parts(a[3], 0)
  local value, kept = look(a[1], 'stream'), {}
  for _, entry in ipairs(value and value.a or {}) do
    local first, second = parts(entry[1])
    if not before(first, second, low1, low2) then kept[#kept + 1] = entry end
  end
  local removed = value and value.n - #kept or 0
  if removed > 0 then
    value = own(a[1], 'stream')
    value.a, value.n = kept, #kept
  end
  return removed
end)

command('RENAME', 'all', 2, 2, function(a)
  local value = look(a[1]) or R.fail('no such key')
  R.db[a[1]] = nil
  R.db[a[2]] = value
  R.nwrites = R.nwrites + 1
  return {ok = 'OK'}
end)
