#!lua flags=no-writes
--[[
fsck: check one part of a queue against the invariants; nothing is changed here.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash nunknowns:hash
  generations:hash requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set
  left_ready:set left_circle:set keys:hash lines:hash turns:zset rests:zset rules:hash
  dead:zset dead_messages:hash last_dead:hash quarantine:hash wake:list meta:hash
  events:stream schedules:hash ticks:hash tick_log:list flow_outbox:stream
ARGV
  part    'types': of each key; 'totals'; 'ready' 'circle' 'due' 'done' 'dead' 'lines' 'keys'; 'running': of each key, where at most 10,000 hold a lock; the name of a hash with a field
          per message, 'messages' among them; 'members': mids of unended members in messages, and how many
          meta says there are; 'left_ready' 'left_circle'; 'last_dead' 'dead_messages'
          'quarantine'; 'at': one mid's place, 'note_ready' 'note_circle': whether one note has its copy
  cursor  offset in a list or sorted set, or SCAN's; the mid, for the last three
  limit   entries looked at, 1-1000
RETURNS  {next cursor, mids seen, notes seen, violations, then the mids, the notes, and per violation: rule, mid};
         cursor '0' = end; a list's cursor distinguishes notes from mids
COST     O(limit), and O(cursor) in a list; O(ready + circle) for one mid
WRITES   nothing
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options, progress,
  ready, due, circle, done, left_ready, left_circle, keys, lines, turns, rests, rules, dead, dead_messages, last_dead,
  quarantine, wake, meta, events, schedules, ticks, tick_log, flow_outbox = unpack(KEYS)
local part, cursor, limit = unpack(ARGV)

--@include shared/_arguments
keys_are(33)
arguments_are(3)
limit = whole('limit', limit, 1, 1000)
--@include _stored
--@include _counters
--@include _text
--@include _mid
--@include _check

local NAMES = {'messages', 'locks', 'tokens', 'backoffs', 'nattempts', 'ncrashes', 'nunknowns', 'generations',
  'requeue', 'options', 'progress', 'ready', 'due', 'circle', 'done', 'left_ready', 'left_circle', 'keys', 'lines',
  'turns', 'rests', 'rules', 'dead', 'dead_messages', 'last_dead', 'quarantine', 'wake', 'meta', 'events', 'schedules',
  'ticks', 'tick_log', 'flow_outbox'}
local TYPES = {ready = 'list', due = 'zset', circle = 'list', done = 'set', left_ready = 'set', left_circle = 'set',
  turns = 'zset', rests = 'zset', dead = 'zset', wake = 'list', events = 'stream', tick_log = 'list', flow_outbox = 'stream'}
local seen, notes, following = {}, {}, '0'

local function offset() return whole('cursor', cursor, 0, 9007199254740991) end

local function next_offset(from, page) return #page < limit and '0' or from + #page end

local function listed(list, left)
  local from = offset()
  local mids = redis.call('LRANGE', list, from, from + limit - 1)
  for _, mid in ipairs(mids) do
    local noted = redis.call('SISMEMBER', left, mid) == 1
    local kind = noted and notes or seen
    kind[#kind + 1] = mid
    if not noted then check[part](mid) end
  end
  return next_offset(from, mids)
end

local function scored(set)
  local from = offset()
  seen = redis.call('ZRANGE', set, from, from + limit - 1)
  for _, mid in ipairs(seen) do check[part](mid) end
  return next_offset(from, seen)
end

local function scanned(command, key, step, look)
  local reply = redis.call(command, key, cursor, 'COUNT', limit)
  for i = 1, #reply[2], step do look(reply[2][i], reply[2][i + 1]) end
  return reply[1]
end

local function side(mid, value)
  rule(has(messages, mid), part .. ' without message', mid)
  rule(not LIMITS[part] or stored(value, LIMITS[part], nil), part .. ' holds no number', mid)
end

local function types()
  for i, name in ipairs(NAMES) do
    local type_ = redis.call('TYPE', KEYS[i]).ok
    rule(type_ == 'none' or type_ == (TYPES[name] or 'hash'), 'key of another type: ' .. type_, name)
  end
end

local function is_placed(mid)
  local function copy(list, left)
    return redis.call('LPOS', list, mid) and redis.call('SISMEMBER', left, mid) == 0
  end
  return redis.call('ZSCORE', due, mid) or copy(ready, left_ready) or copy(circle, left_circle) or in_line(mid)
end

-- K1: the running messages of a key are its messages that hold a lock.
local function running()
  if redis.call('HLEN', locks) > 10000 or redis.call('HLEN', keys) == 0 then return end
  local running_of, held = {}, redis.call('HKEYS', locks)
  for first = 1, #held, 1000 do
    for _, own in ipairs(redis.call('HMGET', options, unpack(held, first, math.min(#held, first + 999)))) do
      local key = string.match(own or '', '^%d*,[@<>]?%d*,o?%-?%d*,(.+)$')
      if key then running_of[key] = (running_of[key] or 0) + 1 end
    end
  end
  for _, key in ipairs(redis.call('HKEYS', keys)) do
    local state = redis.call('HGET', keys, key)
    local _, _, _, count = struct.unpack('<dddddddB', #state == 57 and state or string.rep('\0', 57))
    rule(count == (running_of[key] or 0), 'keys: running differs from the locks', key)
    running_of[key] = nil
  end
  for key in pairs(running_of) do rule(false, 'keys: running differs from the locks', key) end
end

local look = {
  types = types, totals = function() totals() stream(events, '') stream(flow_outbox, 'flow_outbox') end,
  ready = function() following = listed(ready, left_ready) end,
  circle = function() following = listed(circle, left_circle) end,
  due = function() following = scored(due) end,
  dead = function() following = scored(dead) end,
  done = function()
    following = scanned('SSCAN', done, 1, function(mid) rule(has(messages, mid), 'done without message', mid) end)
  end,
  messages = function()
    following = scanned('HSCAN', messages, 2, function(mid) seen[#seen + 1] = mid end)
  end,
  members = function()
    following = scanned('HSCAN', messages, 2, function(mid)
      if string.byte(mid) == 126 and not finished(mid) then seen[#seen + 1] = mid end
    end)
    notes[1] = tostring(count_of(meta, 'members'))
  end,
  lines = function()
    following = scanned('HSCAN', lines, 2, function(field, mid)
      seen[#seen + 1] = mid
      check.lines(field, mid)
    end)
  end,
  keys = function() following = scanned('HSCAN', keys, 2, check_key) end,
  running = running,
  left_ready = function() following = scanned('SSCAN', left_ready, 1, function(mid) notes[#notes + 1] = mid end) end,
  left_circle = function() following = scanned('SSCAN', left_circle, 1, function(mid) notes[#notes + 1] = mid end) end,
  dead_messages = function()
    following = scanned('HSCAN', dead_messages, 2, function(id)
      rule(redis.call('ZSCORE', dead, id), 'content without a dead message', id)
    end)
  end,
  last_dead = function()
    following = scanned('HSCAN', last_dead, 2, function(mid, id)
      rule(redis.call('ZSCORE', dead, id), 'newest dead of a mid is none', mid)
    end)
  end,
  quarantine = function()
    following = scanned('HSCAN', quarantine, 2, function(bytes) rule(false, 'quarantined: not a mid', bytes) end)
  end,
  at = function() rule(not has(messages, cursor) or is_placed(cursor), 'message in no place', cursor) end,
  note_ready = function()
    local noted = redis.call('SISMEMBER', left_ready, cursor) == 1
    rule(not noted or redis.call('LPOS', ready, cursor), 'left-ready: note without copy', cursor)
  end,
  note_circle = function()
    local noted = redis.call('SISMEMBER', left_circle, cursor) == 1
    rule(not noted or redis.call('LPOS', circle, cursor), 'left-circle: note without copy', cursor)
  end,
}
if look[part] then
  look[part]()
else
  local key
  for i = 2, 11 do if NAMES[i] == part then key = KEYS[i] end end
  if not key then refuse('part', 'one of those that the script names') end
  following = scanned('HSCAN', key, 2, side)
end
local reply = {tostring(following), #seen, #notes, #bad / 2}
for _, items in ipairs({seen, notes, bad}) do
  for _, item in ipairs(items) do reply[#reply + 1] = item end
end
return reply
