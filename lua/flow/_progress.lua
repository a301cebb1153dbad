-- progress: consequences of changed counts. A step becomes ready once; a flow is over when no step can continue.
-- needs: meta steps calls todo step_of is_over is_done to_do still_to_do expire_all FOLLOWS PARENT SUBS
-- A flow has fewer steps than MAX_NAMES; further names in a damaged list are left out.
local MAX_NAMES = 20000
local function names_in(value)
  local names, count = {}, 0
  for name in string.gmatch(value or '', '[^,]+') do
    if count == MAX_NAMES then break end
    count = count + 1
    names[count] = name
  end
  return names
end

local function is_met(name, when)
  local s = step_of(name)
  if not s then return false end
  if when == 'done' then return is_done(s) end
  if when == 'ended' then return is_over(s) end
  return is_over(s) and not is_done(s) and s.nretried == 0
end

local function can_go(s)
  for name, when in string.gmatch(s.edges, '([%w_-]+):(%l+)') do
    if not is_met(name, when) then return false end
  end
  return true
end

-- Update the flow's counts after a step's counts changed.
local function recount(flow, s, now_ms)
  s.changed = true
  local over, bad = is_over(s), is_over(s) and not is_done(s)
  local waits = s.ready_at > 0 and not over
  flow.open = flow.open + (waits and 1 or 0) - (s.waits and 1 or 0)
  flow.failed = flow.failed + (bad and 1 or 0) - (s.bad and 1 or 0)
  if over and s.ended_at == 0 then s.ended_at = now_ms end
  s.waits, s.bad = waits, bad
end

-- Called before a step's counts change.
local function note(s)
  if s.waits == nil then
    s.waits = s.ready_at > 0 and not is_over(s)
    s.bad = is_over(s) and not is_done(s)
  end
end

local function make_ready(flow, s, now_ms)
  note(s)
  s.ready_at = math.max(1, now_ms)
  local over = is_over(s)
  if s.kind == 'flow' then
    flow.subs = math.max(0, flow.subs - 1)
    to_do(flow, s.name, 'flow')
  elseif s.kind == 'map' then
    if s.source ~= 'stream' and not over then to_do(flow, s.name, 'map') end
  elseif not over and (s.kind ~= 'wait' or redis.call('HSTRLEN', calls, s.name) > 0) then
    to_do(flow, s.name, 'send')
  end
  recount(flow, s, now_ms)
end

-- candidates: names of steps that may be ready; changed: names of steps whose counts changed.
local function go_on(flow, candidates, changed, now_ms)
  if flow.state == 'open' or flow.state == 'cancelled' then return end
  local at = 1
  for _, name in ipairs(changed) do
    local s = step_of(name)
    if s and is_over(s) then
      for _, follower in ipairs(names_in(redis.call('HGET', steps, FOLLOWS .. name))) do
        candidates[#candidates + 1] = follower
      end
    end
  end
  while candidates[at] do
    local s = step_of(candidates[at])
    if s and s.ready_at == 0 and can_go(s) then
      make_ready(flow, s, now_ms)
      if is_over(s) then
        for _, follower in ipairs(names_in(redis.call('HGET', steps, FOLLOWS .. s.name))) do
          candidates[#candidates + 1] = follower
        end
      end
    end
    at = at + 1
  end
end

-- Return whether the flow has ended; ended flows are kept for a while, others until they end.
local function settle(flow, now_ms)
  if flow.state == 'open' then return end
  local quiet = flow.open == 0 and flow.retried == 0 and still_to_do() == 0
  local state = flow.state == 'cancelled' and 'cancelled' or flow.failed > 0 and 'failed' or 'done'
  -- If a person revives the last dead member, no step continues, and the flow is still done.
  if quiet and (flow.over == 0 or flow.state ~= state) then
    flow.over, flow.state = math.max(1, now_ms), state
    if flow.parent ~= '' then to_do(flow, PARENT, 'parent') end
    if flow.subs > 0 then to_do(flow, SUBS, 'subs') end
  elseif not quiet and flow.over > 0 then
    flow.over = 0
    redis.call('HDEL', todo, PARENT)
    if flow.state ~= 'cancelled' then
      flow.state = 'running'
      if flow.subs > 0 then to_do(flow, SUBS, 'subs') end
    end
  end
end

-- After everything is written.
local function keep_or_expire(flow)
  if flow.state == 'open' then
    local left = redis.call('PTTL', meta)
    if left > 0 then expire_all(left) end
  elseif flow.over > 0 then
    -- Late entries don't extend the life of an ended flow.
    local left = flow.was.over > 0 and redis.call('PTTL', meta) or -1
    expire_all(left > 0 and left or math.max(1, flow.keep))
  elseif flow.was.over > 0 or flow.was.state == 'open' then
    for _, key in ipairs(KEYS) do redis.call('PERSIST', key) end
  end
end
