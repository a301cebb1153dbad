-- lists_zsets: the list and sorted-set commands of mini_redis.
local R = ...
local command, look, own, drop_if_empty, integer = R.command, R.look, R.own, R.drop_if_empty, R.integer

local function push(front)
  return function(a, count)
    local value = own(a[1], 'list')
    for i = 2, count do
      if front then table.insert(value.a, 1, a[i]) else value.a[#value.a + 1] = a[i] end
    end
    value.n = #value.a
    return value.n
  end
end
command('LPUSH', 'first', 2, nil, push(true))
command('RPUSH', 'first', 2, nil, push(false))

local function pop(front)
  return function(a, count)
    local value, wanted = look(a[1], 'list'), count == 2 and integer(a[2]) or 1
    if not value then return false end
    value = own(a[1], 'list')
    local popped = {}
    while #popped < wanted and #value.a > 0 do
      popped[#popped + 1] = table.remove(value.a, front and 1 or #value.a)
    end
    value.n = #value.a
    drop_if_empty(a[1], value)
    return count == 2 and popped or popped[1]
  end
end
command('LPOP', 'first', 1, 2, pop(true))
command('RPOP', 'first', 1, 2, pop(false))

command('LMOVE', 'first', 4, 4, function(a)
  local from, to = look(a[1], 'list'), look(a[2])
  if not from then return false end
  if to and to.t ~= 'list' then R.fail('WRONGTYPE ' .. a[2]) end
  local item = pop(a[3] == 'LEFT')({a[1]}, 1)
  push(a[4] == 'LEFT')({a[2], item}, 2)
  return item
end)

command('LLEN', 'first', 1, 1, function(a)
  local value = look(a[1], 'list')
  return value and value.n or 0
end)

command('LINDEX', 'first', 2, 2, function(a)
  local value = look(a[1], 'list')
  return value and value.a[R.index(value.a, a[2])] or false
end)

command('LRANGE', 'first', 3, 3, function(a)
  local value, reply = look(a[1], 'list'), {}
  if not value then return reply end
  local first, last = R.bounds(value.n, a[2], a[3])
  for i = first, last do reply[#reply + 1] = value.a[i] end
  return reply
end)

command('LTRIM', 'first', 3, 3, function(a)
  local value = look(a[1], 'list')
  if not value then return {ok = 'OK'} end
  local first, last = R.bounds(value.n, a[2], a[3])
  if first > 1 or last < value.n then
    value = own(a[1], 'list')
    local kept = {}
    for i = first, last do kept[#kept + 1] = value.a[i] end
    value.a, value.n = kept, #kept
    drop_if_empty(a[1], value)
  end
  return {ok = 'OK'}
end)

command('LREM', 'first', 3, 3, function(a)
  local value, most = look(a[1], 'list'), integer(a[2])
  if not value then return 0 end
  if most < 0 then R.fail('LREM from the tail is not modelled') end
  local kept, removed = {}, 0
  for _, item in ipairs(value.a) do
    if item == a[3] and (most == 0 or removed < most) then removed = removed + 1 else kept[#kept + 1] = item end
  end
  if removed > 0 then
    value = own(a[1], 'list')
    value.a, value.n = kept, #kept
    drop_if_empty(a[1], value)
  end
  return removed
end)

command('LPOS', 'first', 2, 2, function(a)
  local value = look(a[1], 'list')
  for i, item in ipairs(value and value.a or {}) do if item == a[2] then return i - 1 end end
  return false
end)

-- -> members in order of (score, name)
local function ordered(value)
  local names = R.members(value)
  local scores = value and value.m
  table.sort(names, function(x, y)
    if scores[x] ~= scores[y] then return scores[x] < scores[y] end
    return x < y
  end)
  return names
end
R.ordered = ordered

local function score_of(text)
  if text == '-inf' then return -math.huge elseif text == '+inf' then return math.huge end
  return tonumber(text) or R.fail('value is not a valid float: ' .. text)
end

-- -> a test of scores from Redis' min and max, '(' for an open end
local function within(least, most)
  local open_least, open_most = string.sub(least, 1, 1) == '(', string.sub(most, 1, 1) == '('
  local low, high = score_of(open_least and string.sub(least, 2) or least), score_of(open_most and string.sub(most, 2) or most)
  return function(score)
    return (score > low or (score == low and not open_least)) and (score < high or (score == high and not open_most))
  end
end

command('ZADD', 'first', 3, nil, function(a, count)
  local only_greater = a[2] == 'GT'
  local from = only_greater and 3 or 2
  if (count - from) % 2 == 0 then R.fail('syntax error: ZADD') end
  local scores, added = {}, 0
  for i = from, count, 2 do scores[i] = score_of(a[i]) end
  local value = own(a[1], 'zset')
  for i = from, count, 2 do
    local score, before = scores[i], value.m[a[i + 1]]
    if not before then added = added + 1 end
    if not (only_greater and before and before >= score) then value.m[a[i + 1]] = score end
  end
  value.n = value.n + added
  return added
end)

command('ZREM', 'first', 2, nil, function(a, count)
  local value, removed = look(a[1], 'zset'), 0
  if not value then return 0 end
  for i = 2, count do
    if value.m[a[i]] then
      value = own(a[1], 'zset')
      value.m[a[i]], value.n, removed = nil, value.n - 1, removed + 1
    end
  end
  drop_if_empty(a[1], value)
  return removed
end)

command('ZCARD', 'first', 1, 1, function(a)
  local value = look(a[1], 'zset')
  return value and value.n or 0
end)

command('ZSCORE', 'first', 2, 2, function(a)
  local value = look(a[1], 'zset')
  return value and value.m[a[2]] and R.text_of(value.m[a[2]]) or false
end)

command('ZRANK', 'first', 2, 2, function(a)
  for i, name in ipairs(ordered(look(a[1], 'zset'))) do if name == a[2] then return i - 1 end end
  return false
end)

command('ZCOUNT', 'first', 3, 3, function(a)
  local value, count, inside = look(a[1], 'zset'), 0, within(a[2], a[3])
  for _, score in pairs(value and value.m or {}) do if inside(score) then count = count + 1 end end
  return count
end)

local function by_score(value, least, most, offset, limit)
  local reply, inside, skipped = {}, within(least, most), 0
  for _, name in ipairs(ordered(value)) do
    if inside(value.m[name]) then
      if skipped < offset then
        skipped = skipped + 1
      elseif limit < 0 or #reply < limit then
        reply[#reply + 1] = name
      end
    end
  end
  return reply
end

command('ZRANGEBYSCORE', 'first', 3, 6, function(a, count)
  if count ~= 3 and not (count == 6 and a[4] == 'LIMIT') then R.fail('syntax error: ZRANGEBYSCORE') end
  return by_score(look(a[1], 'zset'), a[2], a[3], integer(a[5] or '0'), integer(a[6] or '-1'))
end)

command('ZRANGE', 'first', 3, 7, function(a, count)
  local value = look(a[1], 'zset')
  if a[4] == 'BYSCORE' and (count == 4 or (count == 7 and a[5] == 'LIMIT')) then
    return by_score(value, a[2], a[3], integer(a[6] or '0'), integer(a[7] or '-1'))
  end
  if count > 4 or (a[4] and a[4] ~= 'REV' and a[4] ~= 'WITHSCORES') then R.fail('syntax error: ZRANGE') end
  local names, reply = ordered(value), {}
  local first, last = R.bounds(#names, a[2], a[3])
  for i = first, last do
    local name = names[a[4] == 'REV' and #names + 1 - i or i]
    reply[#reply + 1] = name
    if a[4] == 'WITHSCORES' then reply[#reply + 1] = R.text_of(value.m[name]) end
  end
  return reply
end)

command('ZRANGESTORE', 'first', 4, 4, function(a)
  local source = look(a[2], 'zset')
  local names, scores = ordered(source), {}
  local first, last = R.bounds(#names, a[3], a[4])
  for i = first, last do scores[names[i]] = source.m[names[i]] end
  if look(a[1]) then
    R.db[a[1]] = nil
    R.nwrites = R.nwrites + 1
  end
  if first > last then return 0 end
  local value = own(a[1], 'zset')
  value.m, value.n = scores, last - first + 1
  return value.n
end)

command('ZREMRANGEBYRANK', 'first', 3, 3, function(a)
  local names = ordered(look(a[1], 'zset'))
  local first, last = R.bounds(#names, a[2], a[3])
  for i = first, last do
    local value = own(a[1], 'zset')
    value.m[names[i]], value.n = nil, value.n - 1
    drop_if_empty(a[1], value)
  end
  return math.max(0, last - first + 1)
end)
