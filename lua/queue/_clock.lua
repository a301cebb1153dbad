-- clock: now_ms, read once. A floor absorbs backward steps of up to a minute; a larger step resets the floor.
-- A timed pause ends by itself; the next hand-out removes it.
-- needs: meta events time_ms LATEST_MS MAX_LOCK_MS stored whole_or_none
local now_ms, paused, level, floor, max_lease, max_content, maxlen, fence, turn, members, walked_at, plain_until, stepped_back_ms, pause_ms, sealed
local function read_clock(now)
  paused, level, floor, max_lease, max_content, maxlen, fence, turn, members, walked_at, plain_until = unpack(redis.call('HMGET', meta,
    'paused', 'events', 'floor', 'max_lease', 'max_content', 'maxlen', 'fence', 'turn', 'members', 'walked', 'plain_until'))
  now_ms = time_ms(whole_or_none('now', now, 0, LATEST_MS))
  floor, max_lease = stored(floor, LATEST_MS, 0), stored(max_lease, MAX_LOCK_MS, 0)
  -- A sealed queue has no such number. So enqueue_plain rejects all messages, and no content is longer than the assumed number.
  if max_content == 'sealed' then sealed, max_content = redis.call('HGET', meta, 'sealed') or '0', 1048576 end
  max_content = stored(max_content, 1048576, 0)
  -- Exists once the queue has had keys or rules.
  turn = turn and math.floor(stored(turn, 9e15, 0))
  -- Exists once the queue has had messages of flows.
  members = members and math.floor(stored(members, 1e15, 0))
  -- Exists while no message needs more than the scripts for plain calls do, and no message is due before that moment.
  plain_until = stored(plain_until, LATEST_MS, nil)
  stepped_back_ms = floor - now_ms
  if stepped_back_ms > 0 and stepped_back_ms <= 60000 then now_ms = floor end
  if paused ~= '1' then return end
  local ends = stored(redis.call('HGET', meta, 'pause_ends'), LATEST_MS, nil)
  pause_ms = ends and math.ceil(ends - now_ms)
  if pause_ms and pause_ms <= 0 then paused = 'over' end
end

-- Called before a write of data that only the general scripts read, until one of these scripts finds that such data is
-- gone.
local function not_plain()
  if plain_until then redis.call('HDEL', meta, 'plain_until') end
  plain_until = nil
end

-- Called when something becomes due at `at`.
local function plain_before(at)
  if plain_until and at < plain_until then
    plain_until = at
    redis.call('HSET', meta, 'plain_until', string.format('%d', at))
  end
end

-- In each call, the first event and every hundredth event after it trim the stream.
local nemitted, moment, moment_text = 0, 0, '0'
local function emit(kind, mid, at, rest)
  if level == 'off' then return end
  if at ~= moment then moment, moment_text = at, string.format('%d', at) end
  local text = kind .. '\31' .. mid .. '\31' .. moment_text
  if rest then text = text .. '\31' .. rest end
  -- If events can't be appended (the last id is used up, or the key has another type), only history is lost.
  if nemitted % 100 == 0 then
    if not maxlen or #maxlen > 10 or not string.find(maxlen, '^%d+$') then maxlen = '100000' end
    redis.pcall('XADD', events, 'MAXLEN', '~', maxlen, '*', '1', text)
  else
    redis.pcall('XADD', events, '*', '1', text)
  end
  nemitted = nemitted + 1
end

-- The script's first write, once it has found something to change.
local function tick()
  if now_ms == floor then return end
  redis.call('HSET', meta, 'floor', string.format('%d', now_ms))
  if stepped_back_ms > 60000 then
    emit('clock_jump', '', now_ms, '\31\31\31\31\31\31\31' .. string.format('%d', stepped_back_ms))
  end
  floor, stepped_back_ms = now_ms, 0
end
