-- rows: the steps in a call: name, kind, queue, source, edges, options, call. All are checked before any is stored.
-- needs: meta steps calls known text FOLLOWS ROOTS ALL
local STEP_KINDS = {step = 1, map = 1, wait = 1, timer = 1, flow = 1}
local WHENS = {done = 1, ended = 1, failed = 1}
local WIDTH, MAX_EDGES, MAX_OF_A_FLOW = 7, 1000, 10000

-- is_known: whether an earlier step has this name.
local function check_edges(name, edges, is_known)
  local count, rest = 0, edges
  while rest ~= '' do
    local step, when, more = string.match(rest, '^([%w_-]+):(%l+),?(.*)$')
    if not step or not WHENS[when] then refuse('the edges of a step', '`step:done`, `step:ended` or `step:failed`, with commas') end
    if not is_known(step) then refuse('the edges of a step', 'to steps before it') end
    count, rest = count + 1, more
  end
  if count > MAX_EDGES then refuse('the edges of a step', '1,000 at most') end
end

local function check_row(at, is_known)
  local name, kind, queue, source, edges, options, call = unpack(ARGV, at, at + 6)
  if not string.find(name, '^[%w_-]+$') or #name > 32 then refuse('a step', '1-32 letters, digits, _ and -') end
  if not STEP_KINDS[kind] then refuse('the kind of a step', 'step, map, wait, timer or flow') end
  if #queue > 512 or string.find(queue, '%c') or (queue == '') ~= (kind == 'flow') then refuse('the queue of a step', 'a name') end
  local from = string.match(source, '^=([%w_-]+)$')
  local fits = source == ''
  if kind == 'map' then fits = source == 'stream' or source == 'items' or (from and is_known(from)) end
  if kind == 'flow' then fits = string.find(source, '^[%w_.@+-]+:[%w_:@+-]+$') and #source <= 64 end
  if not fits then refuse('the source of a step', 'one of its kind') end
  if source == 'stream' and edges ~= '' then refuse('the edges of a step', 'none: its producer adds members at once') end
  check_edges(name, edges, is_known)
  if #options > 65536 or #call > 16777216 then refuse('options and call of a step', '64 KiB and 16 MiB at most') end
end

local function row_text(at)
  local _, kind, queue, source, edges, options = unpack(ARGV, at, at + 5)
  return table.concat({kind, queue, source, edges, options}, '\31')
end

-- Check all rows starting at `first`. step_there: returns a stored step, or false.
-- -> the positions of new rows; nil if a stored step differs from its row
local function new_rows(first, step_there)
  local mine, fresh, clash = {}, {}, false
  local function is_known(name) return mine[name] or step_there(name) end
  for at = first, #ARGV, WIDTH do
    check_row(at, is_known)
    local name = ARGV[at]
    if mine[name] then refuse('steps', 'each given once, not twice as ' .. name) end
    local there = step_there(name)
    if not there then
      fresh[#fresh + 1] = at
    elseif there.kind ~= ARGV[at + 1] or there.queue ~= ARGV[at + 2] or there.source ~= ARGV[at + 3] or there.edges ~= ARGV[at + 4] then
      clash = true
    end
    mine[name] = true
  end
  return not clash and fresh or nil
end

-- Stored lists stay text: a flow that grows step by step would split and join them for each step.
local function added_to(lists, name, more)
  local list = lists[name] or {}
  list[#list + 1], lists[name] = more, list
end

-- Store checked rows. `bits`: the next free number. -> the next free number after the rows, how many rows are flows
local function keep_rows(starts, bits)
  local lists, subs = {}, 0
  for _, at in ipairs(starts) do
    local name, edges = ARGV[at], ARGV[at + 4]
    redis.call('HSET', steps, name, row_text(at))
    if ARGV[at + 6] ~= '' then redis.call('HSET', calls, name, ARGV[at + 6]) end
    added_to(lists, ALL, name)
    if ARGV[at + 1] == 'flow' then subs = subs + 1 end
    if edges == '' then added_to(lists, ROOTS, name) end
    local told = {}
    for step in string.gmatch(edges, '([%w_-]+):') do
      if not told[step] then added_to(lists, FOLLOWS .. step, name) end
      told[step] = true
    end
    if ARGV[at + 1] == 'map' then
      redis.call('HSET', meta, 'n:' .. name, '0,0,0,0,0,0,0,0,0')
    else
      redis.call('HSET', meta, 'n:' .. name, '1,0,0,1,0,0,0,0,0', 'x:' .. name, text(bits) .. ':1')
      bits = bits + 1
    end
    known[name] = nil
  end
  for field, names in pairs(lists) do
    local before, more = redis.call('HGET', steps, field) or '', table.concat(names, ',')
    redis.call('HSET', steps, field, before == '' and more or before .. ',' .. more)
  end
  return bits, subs
end
