-- check: the rules for a mid in each place, for its other fields, and for the totals.
-- needs: options keys lines turns rests dead_messages messages left_ready left_circle meta done tokens count_of is_mid backoffs circle dead due locks ready ncrashes nunknowns generations requeue progress stored LATEST_MS
local bad = {}
local function rule(holds, name, mid)
  if not holds then bad[#bad + 1], bad[#bad + 2] = name, mid end
end
local function has(key, mid) return redis.call('HEXISTS', key, mid) == 1 end
local function finished(mid) return redis.call('SISMEMBER', done, mid) == 1 end
local function size(list, notes) return redis.call('LLEN', list) - redis.call('SCARD', notes) end

-- -> slot, key, from the name of a place in a line
local function line_place(field) return string.match(field, '^(%-?%d+):(.+)$') end

-- A place in a line belongs to its message and must be the place in its options.
local function in_line(mid)
  local slot, key = string.match(redis.call('HGET', options, mid) or '', '^%d*,[@<>]?%d*,o?(%-?%d+),(.+)$')
  return slot ~= nil and redis.call('HGET', lines, slot .. ':' .. key) == mid
end

-- K3, K5: a key with waiting messages has a turn, rests or is at its limit; a key without any has no state.
local function check_key(key, state)
  if #state ~= 57 then return rule(false, 'keys: not a state', key) end
  local _, _, waiting, running, _, _, _, flags = struct.unpack('<dddddddB', state)
  local turned, resting = redis.call('ZSCORE', turns, key), redis.call('ZSCORE', rests, key)
  rule((turned and 1 or 0) + (resting and 2 or 0) == flags % 4, 'keys: in turns or rests and not said so, or said so', key)
  if key ~= '' then rule(waiting == 0 or turned or resting or running > 0, 'a key waits in vain', key) end
  rule(waiting > 0 or running > 0 or turned or resting, 'a key that nothing is owed', key)
end

local check = {
  lines = function(field, mid)
    local slot, key = line_place(field)
    rule(slot ~= nil, 'lines: not a place', mid)
    rule(is_mid(mid), 'lines: not a mid', mid)
    rule(has(messages, mid), 'in a line without message', mid)
    rule(not has(locks, mid) and not finished(mid) and not has(backoffs, mid), 'in a line and elsewhere', mid)
    rule(slot and redis.call('HGET', keys, key), 'in the line of no key', mid)
    rule(in_line(mid) and redis.call('HGET', lines, field) == mid, 'in a line that it does not name', mid)
  end,
  ready = function(mid)
    rule(is_mid(mid), 'ready: not a mid', mid)
    rule(has(messages, mid), 'ready without message', mid)
    rule(not has(locks, mid) and not finished(mid) and not has(backoffs, mid), 'ready and elsewhere', mid)
  end,
  circle = function(mid)
    rule(is_mid(mid), 'circle: not a mid', mid)
    rule(has(messages, mid), 'circle without message', mid)
    rule(has(locks, mid) ~= finished(mid), 'circle: neither locked nor done, or both', mid)
    rule(has(locks, mid) == has(tokens, mid), 'lock without token', mid)
    rule(not has(backoffs, mid), 'circle and due', mid)
  end,
  due = function(mid)
    rule(is_mid(mid), 'due: not a mid', mid)
    rule(has(messages, mid), 'due without message', mid)
    local backoff, score = redis.call('HGET', backoffs, mid), redis.call('ZSCORE', due, mid)
    rule(backoff and tonumber(backoff) == tonumber(score), 'due without its backoff', mid)
    rule(not has(locks, mid), 'due and locked', mid)
  end,
  dead = function(id)
    local stored = redis.call('HGET', dead_messages, id)
    rule(stored, 'dead without content', id)
    rule(not stored or string.find(stored, '^%d*\31%d*\31%d*,%d*[^\31]*\31%d+\31'), 'dead: content of another shape', id)
  end,
}

-- Numbers of messages, by the name of their key.
local LIMITS = {locks = LATEST_MS, backoffs = LATEST_MS, nattempts = 1e15, ncrashes = 1e15, nunknowns = 1e15}
local SETTINGS = {floor = LATEST_MS, walked = LATEST_MS, plain_until = LATEST_MS, max_lease = MAX_LOCK_MS, max_content = 1048576, maxlen = 1e9, fence = 9e15,
  deduped = 1e15, dead_max = 1e9, dead_age_ms = MAX_MS, dead_evicted = 1e15, pause_ends = LATEST_MS, turn = 9e15, max = 1e9, members = 1e15}

-- P1: until the time in meta, the queue has only data that the scripts for plain calls read, and no message is due.
local function plain_holds()
  local till, is_paused, is_keyed, has_members = unpack(redis.call('HMGET', meta, 'plain_until', 'paused', 'turn', 'members'))
  if not till then return true end
  local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
  return redis.call('EXISTS', ncrashes, nunknowns, generations, requeue, options, progress, left_ready, left_circle) == 0
    and is_paused ~= '1' and not is_keyed and not has_members and (tonumber(first) or LATEST_MS) >= stored(till, LATEST_MS, 0)
end

-- Two fields mark a sealed queue: one for the scripts for plain calls, both for the other scripts.
local function check_seal()
  local longest, epoch = unpack(redis.call('HMGET', meta, 'max_content', 'sealed'))
  rule((longest == 'sealed') == (epoch ~= false), 'meta: the queue is sealed for some scripts only', '')
  rule(not epoch or stored(epoch, 1e6, nil), 'meta: sealed is not a valid number', '')
end

local function totals()
  local placed = size(ready, left_ready) + size(circle, left_circle) + redis.call('ZCARD', due) + redis.call('HLEN', lines)
  rule(redis.call('HLEN', messages) == placed, 'messages and places differ in number', '')
  rule(redis.call('HLEN', locks) == redis.call('HLEN', tokens), 'locks and tokens differ in number', '')
  rule(redis.call('HLEN', backoffs) == redis.call('ZCARD', due), 'backoffs and due differ in number', '')
  rule(redis.call('ZCARD', dead) == redis.call('HLEN', dead_messages), 'dead and their contents differ', '')
  rule(count_of(meta, 'deduped') <= redis.call('SCARD', done), 'deduped over done', '')
  rule(plain_holds(), 'meta: plain_until is of a queue that is not plain', '')
  check_seal()
  for field, most in pairs(SETTINGS) do
    local text = redis.call('HGET', meta, field)
    rule(not text or (field == 'max_content' and text == 'sealed') or stored(text, most, nil), 'meta: ' .. field .. ' is not a valid number', '')
  end
end

-- The last id that a stream can have leaves room for no entry.
local function stream(key, name)
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  rule(not last or not string.find(last[1], '^18446744073709551615%-'), (name == '' and 'events' or name) .. ': their ids are used up', name)
end
