-- hashes_sets: the hash and set commands of mini_redis.
local R = ...
local command, look, own, drop_if_empty, integer, text_of = R.command, R.look, R.own, R.drop_if_empty, R.integer, R.text_of

local function members(value)
  local names = {}
  for name in pairs(value and value.m or {}) do names[#names + 1] = name end
  table.sort(names)
  return names
end
R.members = members

command('HGET', 'first', 2, 2, function(a)
  local value = look(a[1], 'hash')
  return value and value.m[a[2]] or false
end)

command('HMGET', 'first', 2, nil, function(a, count)
  local value, reply = look(a[1], 'hash'), {}
  for i = 2, count do reply[i - 1] = value and value.m[a[i]] or false end
  return reply
end)

-- Like a scan, in no order that anyone may rely on.
command('HKEYS', 'first', 1, 1, function(a)
  local value = look(a[1], 'hash')
  return value and R.members(value) or {}
end)

command('HEXISTS', 'first', 2, 2, function(a)
  local value = look(a[1], 'hash')
  return value and value.m[a[2]] and 1 or 0
end)

command('HSTRLEN', 'first', 2, 2, function(a)
  local value = look(a[1], 'hash')
  return value and #(value.m[a[2]] or '') or 0
end)

command('HLEN', 'first', 1, 1, function(a)
  local value = look(a[1], 'hash')
  return value and value.n or 0
end)

command('HSET', 'first', 3, nil, function(a, count)
  if count % 2 == 0 then R.fail('wrong number of arguments for HSET') end
  local value, added = own(a[1], 'hash'), 0
  for i = 2, count, 2 do
    if not value.m[a[i]] then added = added + 1 end
    value.m[a[i]] = a[i + 1]
  end
  value.n = value.n + added
  return added
end)

command('HSETNX', 'first', 3, 3, function(a)
  local value = look(a[1], 'hash')
  if value and value.m[a[2]] then return 0 end
  value = own(a[1], 'hash')
  value.m[a[2]], value.n = a[3], value.n + 1
  return 1
end)

command('HDEL', 'first', 2, nil, function(a, count)
  local value, removed = look(a[1], 'hash'), 0
  if not value then return 0 end
  for i = 2, count do
    if value.m[a[i]] then
      value = own(a[1], 'hash')
      value.m[a[i]], value.n, removed = nil, value.n - 1, removed + 1
    end
  end
  drop_if_empty(a[1], value)
  return removed
end)

command('HINCRBY', 'first', 3, 3, function(a)
  local value = look(a[1], 'hash')
  local before = value and value.m[a[2]]
  local sum = integer(before or '0') + integer(a[3])
  value = own(a[1], 'hash')
  if not before then value.n = value.n + 1 end
  value.m[a[2]] = text_of(sum)
  return sum
end)

-- Small tables are scanned whole, in one step, as Redis does with its compact encodings.
local function scan(kind)
  return function(a)
    local value, reply = look(a[1], kind), {}
    for _, name in ipairs(members(value)) do
      reply[#reply + 1] = name
      if kind == 'hash' then reply[#reply + 1] = value.m[name] end
    end
    return {'0', reply}
  end
end
command('HSCAN', 'first', 2, 4, scan('hash'))
command('SSCAN', 'first', 2, 4, scan('set'))

command('SADD', 'first', 2, nil, function(a, count)
  local value, added = look(a[1], 'set'), 0
  for i = 2, count do
    if not (value and value.m[a[i]]) then
      value = own(a[1], 'set')
      value.m[a[i]], value.n, added = true, value.n + 1, added + 1
    end
  end
  return added
end)

command('SREM', 'first', 2, nil, function(a, count)
  local value, removed = look(a[1], 'set'), 0
  if not value then return 0 end
  for i = 2, count do
    if value.m[a[i]] then
      value = own(a[1], 'set')
      value.m[a[i]], value.n, removed = nil, value.n - 1, removed + 1
    end
  end
  drop_if_empty(a[1], value)
  return removed
end)

command('SCARD', 'first', 1, 1, function(a)
  local value = look(a[1], 'set')
  return value and value.n or 0
end)

command('SISMEMBER', 'first', 2, 2, function(a)
  local value = look(a[1], 'set')
  return value and value.m[a[2]] and 1 or 0
end)

command('SMISMEMBER', 'first', 2, nil, function(a, count)
  local value, reply = look(a[1], 'set'), {}
  for i = 2, count do reply[i - 1] = value and value.m[a[i]] and 1 or 0 end
  return reply
end)
