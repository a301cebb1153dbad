-- invariants: the invariants of every state (specs/reliability.md 3.4, as DESIGN section 3 amends it).
local R, S, struct = ...
local I = {}
local SIDES = {'locks', 'tokens', 'backoffs', 'nattempts', 'ncrashes', 'nunknowns', 'generations', 'requeue', 'options', 'progress'}
local RESTING, DEAD = {'eoq_backoff', 'ndry_runs', 'wake'}, {'dead', 'dead_messages', 'last_dead'}
local PLACES = {'ready', 'circle', 'due', 'done', 'left_ready', 'left_circle'}
local TIMED = {'locks', 'tokens', 'requeue', 'circle', 'done'}
local bad, tally

local function rule(holds, text) if not holds then bad[#bad + 1] = text end end
local function fields(key) return R.look(key) and R.db[key].m or {} end
local function items(key) return R.look(key) and R.db[key].a or {} end
local function count(list, mid)
  local n = 0
  for _, item in ipairs(list) do if item == mid then n = n + 1 end end
  return n
end

-- I2: a live mid is in exactly one place; a list holds at most one copy; a note means a copy.
local function place_of(mid, live)
  local in_ready, in_circle = count(items('ready'), mid), count(items('circle'), mid)
  local left_ready, left_circle = fields('left_ready')[mid], fields('left_circle')[mid]
  rule(in_ready <= 1 and in_circle <= 1, 'I2 one copy: ' .. mid)
  rule(not left_ready or in_ready == 1, 'I2 note without copy in ready: ' .. mid)
  rule(not left_circle or in_circle == 1, 'I2 note without copy in circle: ' .. mid)
  local ready = in_ready == 1 and not left_ready
  local circle = in_circle == 1 and not left_circle
  local due, lined = fields('due')[mid] ~= nil, 0
  for _, other in pairs(fields('lines')) do if other == mid then lined = lined + 1 end end
  rule(lined <= 1 and not (lined == 1 and ready), 'I2 one copy in lines: ' .. mid)
  ready = ready or lined == 1
  local places = (ready and 1 or 0) + (circle and 1 or 0) + (due and 1 or 0)
  rule(places == (live and 1 or 0), 'I2 ' .. (live and 'live' or 'gone') .. ' mid in ' .. places .. ' places: ' .. mid)
  return ready, due, circle
end

local function check_mid(mid, owed)
  local content, done = fields('messages')[mid], fields('done')[mid] ~= nil
  local lock, token, newer = fields('locks')[mid], fields('tokens')[mid], fields('requeue')[mid]
  local ready, due, circle = place_of(mid, content ~= nil)
  tally[#tally + 1] = {content ~= nil, ready, due and not done, due and done, lock ~= nil, done and not due, newer ~= nil,
    false, circle}
  rule((lock ~= nil) == (token ~= nil), 'I4 lock without token, or token without lock: ' .. mid)
  if lock then
    rule(circle and not done, 'I4 locked outside the circle: ' .. mid)
    rule(tonumber(lock) <= R.now + (tonumber(fields('meta').max_lease) or 0), 'I11 lock longer than any lease: ' .. mid)
  end
  -- Both are written when a first attempt ends in anything but done.
  rule((fields('nattempts')[mid] == nil) == (fields('generations')[mid] == nil), 'I7 attempts without generation: ' .. mid)
  rule(not circle or lock or done, 'I2 in the circle, neither locked nor done: ' .. mid)
  rule(not (ready and done), 'I2 ready and done: ' .. mid)
  local score = fields('due')[mid]
  rule(score == tonumber(fields('backoffs')[mid]), 'I2 due and backoffs differ: ' .. mid)
  rule(not newer or lock or done, 'I1 requeue on a message that waits: ' .. mid)
  -- accepted = stored, and nothing else is
  local newest = newer and string.match(newer, '^%d*,%d*,%d*[^:]*:(.*)$') or (not done and content) or ''
  rule(newest == owed, 'I8/I9 stored ' .. newest .. ', accepted ' .. owed .. ': ' .. mid)
end

-- I12: each entry of a place is an enqueued mid; there is no sentinel to be taken for one.
local function check_strangers(mids)
  for _, key in ipairs(PLACES) do
    local value = R.look(key)
    for name, item in pairs(value and (value.m or value.a) or {}) do
      local mid = value.a and item or name
      rule(mids[mid], 'I12 a stranger in ' .. key .. ': ' .. mid)
    end
  end
end

local function check_sides()
  for _, key in ipairs(SIDES) do
    for mid in pairs(fields(key)) do rule(fields('messages')[mid], 'I3 ' .. key .. ' without message: ' .. mid) end
  end
  for mid in pairs(fields('done')) do rule(fields('messages')[mid], 'I3 done without message: ' .. mid) end
  local seen = {}
  for _, token in pairs(fields('tokens')) do
    rule(not seen[token], 'I6 one token twice: ' .. token)
    seen[token] = true
  end
end

local function check_dead()
  for id in pairs(fields('dead')) do rule(fields('dead_messages')[id], 'I13 dead without content: ' .. id) end
  for id in pairs(fields('dead_messages')) do rule(fields('dead')[id], 'I13 content of no dead: ' .. id) end
  for mid, id in pairs(fields('last_dead')) do rule(fields('dead')[id], 'I13 last_dead of no dead: ' .. mid) end
end

local function check_totals()
  local deduped = 0
  for mid in pairs(fields('done')) do if fields('due')[mid] then deduped = deduped + 1 end end
  local members = 0
  for mid in pairs(fields('messages')) do
    if string.byte(mid) == 126 and not fields('done')[mid] then members = members + 1 end
  end
  rule(members == (tonumber(fields('meta').members) or 0), 'M2 members counts ' .. (fields('meta').members or '0') .. ' of ' .. members)
  rule(deduped == (tonumber(fields('meta').deduped) or 0), 'I14 deduped counts ' .. (fields('meta').deduped or '0'))
  for key, value in pairs(R.db) do
    if value.t == 'hash' or value.t == 'set' or value.t == 'zset' then
      local n = 0
      for _ in pairs(value.m) do n = n + 1 end
      rule(n == value.n, 'I14 size of ' .. key)
    end
  end
end

local function key_in(own) return string.match(own or '', '^%d*,%d*,o?(%-?%d*),(.+)$') end

local function check_lines()
  local waiting = {}
  for place, mid in pairs(fields('lines')) do
    local slot, key = string.match(place, '^(%-?%d+):(.+)$')
    local own_slot, own_key = key_in(fields('options')[mid])
    waiting[key] = (waiting[key] or 0) + 1
    rule(own_slot == slot and own_key == key, 'K2 ' .. mid .. ' stands at ' .. place)
    rule(fields('messages')[mid] and not fields('locks')[mid] and not fields('done')[mid] and not fields('backoffs')[mid],
      'K2 in a line and elsewhere: ' .. mid)
  end
  return waiting
end

local function check_state(key, text, running, waiting)
  local head, tail, waits, runs, pass, _, _, flags = struct.unpack('<dddddddB', text)
  local turned, resting = fields('turns')[key], fields('rests')[key]
  rule((turned and 1 or 0) + (resting and 2 or 0) == flags % 4, 'K3 turns and rests of ' .. key .. ' are not as said')
  rule(waits > 0 or runs > 0 or resting or turned, 'K5 a trace of ' .. key)
  rule(not turned or turned == pass, 'K3 the turn of ' .. key)
  if key == '' then return end
  rule(runs == (running[key] or 0), 'K1 ' .. key .. ' runs ' .. runs .. ', locks ' .. (running[key] or 0))
  rule(waits == (waiting[key] or 0), 'K2 ' .. key .. ' says that ' .. waits .. ' wait')
  rule(tail - head >= waits, 'K2 the line of ' .. key)
  local most = tonumber(string.match(fields('rules')[''] or '', '^%d+')) or (flags > 3 and 1)
  rule(waits == 0 or turned or resting or (most and runs >= most), 'K3 ' .. key .. ' waits in vain')
end

-- K1: the running messages of a key are its messages that hold a lock. K2: a place in a line is the place that its
-- message names.
-- K3: a key with waiting messages has its turn, rests, or runs as many as allowed. K5: nothing is kept of a key that
-- nothing is owed.
local function check_keys()
  local running, waiting = {}, check_lines()
  for mid in pairs(fields('locks')) do
    local _, key = key_in(fields('options')[mid])
    if key then running[key] = (running[key] or 0) + 1 end
  end
  for key, text in pairs(fields('keys')) do check_state(key, text, running, waiting) end
  for name, names in pairs({K1 = running, K2 = waiting, ['K3 turns'] = fields('turns'), ['K3 rests'] = fields('rests')}) do
    for key in pairs(names) do rule(fields('keys')[key], name .. ': no state of ' .. key) end
  end
end

-- A key has its turn; that of no key may be kept until it comes, though nothing is ready.
local function any_turn()
  for key in pairs(fields('turns')) do if key ~= '' then return true end end
  return false
end

local function is_full()
  local n = 0
  for _ in pairs(fields('locks')) do n = n + 1 end
  return n >= (tonumber(fields('meta').max) or math.huge)
end

-- L5: while callers are told to rest, nothing may be had; what is ready has a wake marker on the way.
local function check_rest(idle)
  local any_ready = false
  for _, mid in ipairs(items('ready')) do any_ready = any_ready or not fields('left_ready')[mid] end
  any_ready = (any_ready or any_turn()) and not is_full()
  rule(#items('wake') <= 1, 'L5 more than one wake marker')
  local pause_ends = tonumber(fields('meta').pause_ends)
  -- A pause that is over stays until the next call. Who waits was told to come back at its end.
  if fields('meta').paused == '1' then
    local rest = R.look('eoq_backoff') and R.db.eoq_backoff.px
    rule(not (rest and pause_ends) or rest <= math.max(pause_ends, R.now + 1), 'L5 resting past the end of the pause')
    return
  end
  if R.look('eoq_backoff') then
    rule(not any_ready, 'L5 resting while a message is ready')
    local till = R.db.eoq_backoff.px
    local waiting = check_lines()
    for key, at in pairs(fields('rests')) do rule(not waiting[key] or at >= till or till <= R.now + 1, 'L5 resting past the rest of ' .. key) end
    for mid, at in pairs(fields('due')) do rule(at >= till or till <= R.now + 1, 'L5 resting past the backoff of ' .. mid) end
  end
  rule(not idle or not any_ready or #items('wake') == 1, 'L5 a message is ready and nobody is woken')
end

-- L3: a call that hands out walks the circle every so many hand-outs, oftener where it is long, and after so many ms; a
-- rest begins with a walk.
function I.walks_every(dequeued, ms, often, length) S.dequeued, S.walk_ms, S.often, S.length = dequeued, ms, often, length end

local function check_walks()
  if not S.dequeued then return end
  local before, meta = S.base.meta and S.base.meta.m or {}, fields('meta')
  local first, last, walked = tonumber(before.fence) or 0, tonumber(meta.fence) or 0, tonumber(meta.walked) or 0
  rule(walked <= (tonumber(meta.floor) or 0), 'L3 walked at ' .. walked .. ', later than the last time')
  local function crossed(step) return math.floor(last / step) > math.floor(first / step) end
  local missed = crossed(S.dequeued) or R.now - walked >= math.max(1, S.walk_ms)
    or crossed(S.often) and S.base.circle and #S.base.circle.a > S.length
  rule(last == first or not missed or walked >= R.now, 'L3 handed out, and the circle not walked since ' .. walked)
  rule(not R.look('eoq_backoff') or S.base.eoq_backoff or walked >= R.now, 'L3 a rest begins without a walk')
end

-- The growing sleep, held at its third step, so that idling reaches a fixed point.
function I.bound_dry_runs()
  local runs = R.look('ndry_runs')
  if runs and tonumber(runs.s) > 3 then R.own('ndry_runs', 'string').s = '3' end
end

-- I16: the time that scripts go by never steps back, nor ahead of the clock. All but the enqueue of a new mid keep it.
local function check_floor()
  local before = S.base.meta
  local floor, last = tonumber(fields('meta').floor) or 0, before and tonumber(before.m.floor) or 0
  rule(floor >= last and floor <= R.now, 'I16 the last time went from ' .. last .. ' to ' .. floor)
  if floor == R.now then return end
  for _, key in ipairs(TIMED) do rule(R.db[key] == S.base[key], 'I16 written without keeping the time: ' .. key) end
end

-- P1: meta of a plain queue, which is all that the scripts for plain calls check.
local NOT_PLAIN = {'ncrashes', 'nunknowns', 'generations', 'requeue', 'options', 'progress', 'left_ready', 'left_circle'}
local function check_plain()
  local meta = fields('meta')
  local till = tonumber(meta.plain_until)
  if not till then return end
  for _, key in ipairs(NOT_PLAIN) do rule(not R.look(key), 'P1 plain, and yet there is ' .. key) end
  rule(not (meta.turn or meta.members or meta.paused == '1'), 'P1 plain, and yet it has keys or flows, or is paused')
  for mid, at in pairs(fields('due')) do rule(at >= till, 'P1 plain beyond the backoff of ' .. mid) end
end

-- After every transition: its other effects besides the named state, which is removed afterwards.
-- idle: rests and wake-ups are part of the state; revivable: the dead are. -> the broken rules, '' when all hold
function I.settled(now, idle, revivable)
  R.now, bad = now, {}
  check_floor()
  check_walks()
  check_plain()
  check_rest(idle)
  if idle then
    I.bound_dry_runs()
  else
    for _, key in ipairs(RESTING) do R.db[key] = nil end
  end
  if R.db.dead or R.db.dead_messages or R.db.last_dead then
    check_dead()
    if not revivable then
      for _, key in ipairs(DEAD) do R.db[key] = nil end
    end
  end
  return bad[1] and table.concat(bad, '; ') or ''
end

-- In every new state. ...: mid and the content owed to it, '' for none.
function I.broken(...)
  local mids = {}
  bad, tally = {}, {}
  for i = 1, select('#', ...), 2 do
    local mid, content = select(i, ...)
    mids[mid] = true
    check_mid(mid, content)
  end
  check_strangers(mids)
  check_sides()
  check_totals()
  check_keys()
  return table.concat(bad, '; ')
end

-- The required answer of the script counts, counted by looking at each mid: I14.
function I.recount()
  local sums = {0, 0, 0, 0, 0, 0, 0, 0, 0}
  for _, facts in ipairs(tally) do
    for i, fact in ipairs(facts) do if fact then sums[i] = sums[i] + 1 end end
  end
  for _ in pairs(fields('dead')) do sums[8] = sums[8] + 1 end
  return unpack(sums)
end

return I
