#!lua flags=allow-oom
--[[
apply: apply changes to a flow, and return the items to send.

Each member counts once: bits are only ever set, so any repetition and any order of entries gives the same state. A step
becomes ready once. Every call returns the items to send until `sent` removes them.

KEYS
  meta:hash steps:hash calls:hash items:hash done:string ended:string retried:string failed:hash results:hash todo:hash
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  source  `q` and the queue that the entries were read from, or `f` and the flow that sent them
  limit  maximum number of items to return
  then up to 1,000 groups: kind, step, number, entry, detail. Kinds: `done`, `dead`, `cancelled`: how the member `number`
  of `step` ended (`done` may have several numbers, `0-63,70`, 2,000 in all; the detail of `dead` is the reason, of which
  200 bytes are kept); `result`: done, detail is its result; `begin`, `look`, `cancel`; `signal`: detail is its value;
  `retry` of `step`, or '' for all steps. Entry: the id of the outbox entry, or ''. Entries of the last five kinds are
  applied once each, in the order of ids. A `dead` or `cancelled` from before the latest retry of its step is ignored
RETURNS  {'', 0, 0, ''} if the flow is gone, or its id has another run; else {state, number of rejected entries, 1 if there
         are more items, else 0, id of the run}, then groups: step (`^`: the parent, `%`: sub-flows whose steps have not
         begun), what to do, stamp, 1 if it was returned before, kind, queue, source, options, call
COST     O(entries + steps waiting for ended steps), O(steps) for cancel and retry
WRITES   the keys whose values changed
]]
local meta, steps, calls, items, done, ended, retried, failed, results, todo = unpack(KEYS)
local now, run, source, limit = unpack(ARGV)

--@include shared/_arguments
local MEMBERS = {done = 1, dead = 1, cancelled = 1, result = 1}
local WORDS = {begin = 1, look = 1, cancel = 1, signal = 1, retry = 1}
keys_are(10)
arguments_are(4, 0, 1000, 5)
whole_or_none('now', now, 0, 253402300799999)
limit = whole('limit', limit, 1, 250)
local MAX_LISTED, nlisted = 2000, 0
-- Check a list of numbers and ranges of numbers, separated by commas, each of at most 7 digits.
local function check_list(list)
  for part in string.gmatch(list .. ',', '([^,]*),') do
    local first, dash, last = string.match(part, '^(%d+)(%-?)(%d*)$')
    if dash == '' then last = first end
    local count = first and last ~= '' and #first < 8 and #last < 8 and last - first + 1 or 0
    nlisted = nlisted + count
    if count < 1 or nlisted > MAX_LISTED then refuse('number', 'up to 2,000 whole numbers from 0 to 9999999, as 0-63,70') end
  end
end

for i = 5, #ARGV, 5 do
  local kind, number, entry = ARGV[i], ARGV[i + 2], ARGV[i + 3]
  if entry ~= '' and (#entry > 40 or not string.find(entry, '^%d+%-%d+$')) then refuse('entry', 'the id of an entry') end
  if not WORDS[kind] and not MEMBERS[kind] then
    refuse('kind', 'a kind of entry')
  elseif kind == 'done' and string.find(number, '^%d+[,-]') then
    check_list(number)
  elseif not string.find(number, '^%d+$') or #number > 7 then
    whole('number', number, 0, 9999999)
  end
  if #ARGV[i + 4] > 65536 then refuse('detail', 'at most 65,536 bytes') end
end
probe('HLEN', meta, steps, calls, items, failed, results, todo)
probe('STRLEN', done, ended, retried)
--@include shared/_clock
--@include _flow
--@include _life
--@include _todo
--@include _progress

local MAX_RESULTS, MAX_REASONS = 67108864, 1000
local TOO_LONG = 'results of the flow are over 64 MiB; store them and return references'
local now_ms, flow, refused = time_ms(now), read_flow(run), 0
if not flow then return {'', 0, 0, ''} end
local candidates, changed = {}, {}

local function change(s)
  note(s)
  if not s.touched then
    s.touched = true
    changed[#changed + 1] = s.name
  end
end

local nreasons = redis.call('HLEN', failed)
local function say_why(s, number, reason)
  if nreasons < MAX_REASONS then nreasons = nreasons + redis.call('HSET', failed, s.name .. ':' .. number, reason) end
end

-- Whether this source may set the member's outcome.
local function is_from_there(s, number)
  if not s or number >= s.size then return false end
  if s.kind == 'flow' then return source == 'f' .. s.source and s.ready_at > 0 end
  if s.is_there == nil then s.is_there = source == 'q' .. s.queue end
  if not s.is_there then return false end
  return s.ready_at > 0 or (s.kind == 'map' and s.source == 'stream')
end

local function set_done(s, number, bit, result)
  if redis.call('SETBIT', done, bit, 1) == 1 then return end
  s.ndone = s.ndone + 1
  if nreasons > 0 then nreasons = nreasons - redis.call('HDEL', failed, s.name .. ':' .. number) end
  if result then
    redis.call('HSET', results, s.name .. ':' .. number, result)
    flow.bytes = flow.bytes + #result
  end
end

local function set_ended(s, bit)
  if redis.call('SETBIT', ended, bit, 1) == 0 then s.nended = s.nended + 1 end
  if s.nretried > 0 and redis.call('SETBIT', retried, bit, 0) == 1 then
    s.nretried, flow.retried = s.nretried - 1, math.max(0, flow.retried - 1)
  end
  local kind = s.kind ~= 'map' and todo_of(s.name)
  if kind == 'send' or kind == 'flow' then redis.call('HDEL', todo, s.name) end
end

-- Whether an end was written before the latest retry of its step. A `done` counts whenever it comes.
local function is_old(kind, s, entry)
  if entry == '' or kind ~= 'dead' and kind ~= 'cancelled' then return false end
  if s.mark == nil then s.mark = redis.call('HGET', meta, MARK .. s.name) or '' end
  return not is_behind(entry, s.mark)
end

-- A member has ended. If a wait's message ended, the wait has timed out.
local function member_ended(kind, name, number, entry, result)
  local s = step_of(name)
  local bit = s and bit_of(s, number)
  if not bit then return false end
  -- A sub-flow was ended because its step never begins.
  if s.kind == 'flow' and s.ready_at == 0 and source == 'f' .. s.source then return true end
  if not is_from_there(s, number) then return false end
  if s.kind == 'wait' and redis.call('GETBIT', ended, bit) == 1 or is_old(kind, s, entry) then return true end
  change(s)
  local good = s.kind ~= 'wait' and (kind == 'done' or kind == 'result')
  local why = kind == 'dead' and string.sub(result or '', 1, 200) or ''
  if kind ~= 'result' then result = nil end
  if result and flow.bytes + #result > MAX_RESULTS and redis.call('GETBIT', done, bit) == 0 then
    good, kind = false, TOO_LONG
  end
  set_ended(s, bit)
  if good then
    set_done(s, number, bit, result)
  elseif redis.call('GETBIT', done, bit) == 0 then
    say_why(s, number, s.kind == 'wait' and kind == 'done' and 'timeout' or why ~= '' and why or kind)
  end
  return true
end

-- The earlier of signal and timer counts; a signal sent before its wait begins is stored.
local function signalled(name, value)
  local s = step_of(name)
  local bit = s and s.kind == 'wait' and bit_of(s, 0)
  if not bit or flow.over > 0 or flow.state == 'cancelled' then return false end
  if redis.call('GETBIT', done, bit) == 1 then return true end
  if redis.call('GETBIT', ended, bit) == 1 and redis.call('GETBIT', retried, bit) == 0 then return false end
  change(s)
  local has_timer = s.ready_at > 0 and redis.call('HSTRLEN', calls, name) > 0
  set_ended(s, bit)
  set_done(s, 0, bit, value)
  if has_timer then to_do(flow, name, 'drop') end
  return true
end

local function all_steps() return names_in(redis.call('HGET', steps, ALL)) end

local function cancel_wait(s, bit)
  if not bit then return end
  set_ended(s, bit)
  say_why(s, 0, 'cancelled')
  if redis.call('HSTRLEN', calls, s.name) > 0 then to_do(flow, s.name, 'drop') end
end

-- No more steps are sent; drainers cancel live members.
local function cancel()
  if flow.over > 0 or flow.state == 'cancelled' then return end
  flow.state = 'cancelled'
  redis.call('DEL', todo)
  for _, name in ipairs(all_steps()) do
    local s = step_of(name)
    if s and (s.ready_at > 0 or s.source == 'stream' and s.size > 0) and (s.nended < s.size + 1 - s.sealed or s.nretried > 0) then
      change(s)
      s.cut = 1 + math.max(0, s.nended - s.ndone - s.nretried)
      s.sealed = 1
      if s.ready_at == 0 then s.ready_at = math.max(1, now_ms) end
      if s.kind == 'wait' then
        cancel_wait(s, bit_of(s, 0))
      elseif s.nended < s.size or s.nretried > 0 then
        to_do(flow, name, 'cancel')
      end
    end
  end
end

local function retry(name)
  local s = step_of(name)
  if not s or not is_over(s) or s.ndone + s.nretried >= s.size or todo_of(name) then return end
  local bit = bit_of(s, 0)
  if s.kind == 'wait' and not bit then return end
  change(s)
  if s.kind == 'wait' then
    redis.call('SETBIT', retried, bit, 1)
    s.nretried, flow.retried = 1, flow.retried + 1
  else
    s.revived = 0
    to_do(flow, name, 'revive')
  end
end

local function begin()
  if flow.state ~= 'open' then return end
  flow.state, flow.begun = 'running', now_ms
  for _, name in ipairs(names_in(redis.call('HGET', steps, ROOTS))) do candidates[#candidates + 1] = name end
end

-- Whether an entry was applied before. A repeated entry must not change later states, because the drainer that applied
-- it first may delete it.
local function was_said(id) return id ~= '' and not is_behind(id, flow.said) end

local function commanded(kind, name, id, detail)
  if kind == 'look' then return true end
  if source ~= 'q' .. flow.home then return false end
  if was_said(id) then return true end
  if id ~= '' then flow.said = id end
  if kind == 'begin' then
    begin()
  elseif kind == 'cancel' then
    cancel()
  elseif kind == 'signal' then
    return signalled(name, detail)
  elseif kind == 'retry' and flow.state ~= 'open' and flow.state ~= 'cancelled' then
    for _, step in ipairs(name == '' and all_steps() or {name}) do retry(step) end
  end
  return true
end

local function ones_in(number)
  local count = 0
  while number > 0 do
    count, number = count + number % 2, math.floor(number / 2)
  end
  return count
end

-- Set runs of bits, {first, length}, together. -> how many of these bits were not set
local function set_runs(key, runs)
  local missing = 0
  for from = 1, #runs, 1000 do
    local fields, n = {}, 0
    for i = from, math.min(from + 999, #runs) do
      local run = runs[i]
      fields[n + 1], fields[n + 2], fields[n + 3] = 'SET', 'u' .. run[2], string.format('%d', run[1])
      n, fields[n + 4] = n + 4, string.format('%.0f', 2 ^ run[2] - 1)
    end
    for i, was in ipairs(redis.call('BITFIELD', key, unpack(fields))) do
      missing = missing + runs[from + i - 1][2] - ones_in(was)
    end
  end
  return missing
end

-- Append the bits of the members from `first` to `last`, up to 32 as one run. -> how many members have no bit
local function add_runs(runs, s, first, last)
  local at, stop, base = first, math.min(last, s.size - 1), 0
  for _, extent in ipairs(s.extents) do
    local ends = base + extent[2]
    while at < ends and at <= stop do
      local bit, run = extent[1] + at - base, runs[#runs]
      if bit >= MAX_BITS then return last + 1 - at end
      if not run or bit ~= run[1] + run[2] or run[2] == 32 then
        run = {bit, 0}
        runs[#runs + 1] = run
      end
      local more = math.min(32 - run[2], ends - at, stop + 1 - at, MAX_BITS - bit)
      run[2], at = run[2] + more, at + more
    end
    base = ends
  end
  return last + 1 - at
end

-- Most entries report done members of maps, and most of these are neighbours.
local function members_done(name, list)
  local s = step_of(name)
  local of_map = s and s.kind == 'map' and s.nretried == 0
  local from_there, runs, names = of_map and is_from_there(s, 0), {}, {}
  for first, last in string.gmatch(list, '(%d+)%-?(%d*)') do
    first, last = tonumber(first), tonumber(last) or tonumber(first)
    if of_map then
      local missing = from_there and add_runs(runs, s, first, last) or last + 1 - first
      refused = refused + missing
      for number = first, nreasons > 0 and last - missing or -1 do names[#names + 1] = name .. ':' .. number end
    else
      for number = first, last do
        if not member_ended('done', name, number, '') then refused = refused + 1 end
      end
    end
  end
  if not runs[1] then return end
  change(s)
  s.nended, s.ndone = s.nended + set_runs(ended, runs), s.ndone + set_runs(done, runs)
  if names[1] then nreasons = nreasons - redis.call('HDEL', failed, unpack(names)) end
end

for i = 5, #ARGV, 5 do
  local kind, name, number, entry, detail = unpack(ARGV, i, i + 4)
  local taken = kind == 'done'
  if taken then
    members_done(name, number)
  elseif MEMBERS[kind] then
    taken = member_ended(kind, name, tonumber(number), entry, detail)
  else
    taken = commanded(kind, name, entry, detail)
  end
  if not taken then refused = refused + 1 end
end
for _, name in ipairs(changed) do recount(flow, step_of(name), now_ms) end
go_on(flow, candidates, changed, now_ms)
settle(flow, now_ms)
flow.refused = flow.refused + refused
local wrote = write_flow(flow)
local reply = answer(flow, refused, limit)
if wrote then keep_or_expire(flow) end
return reply
