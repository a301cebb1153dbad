-- pick_slow: pick's general case, when ready holds more than short mids of plain text: stale copies, long contents, and
-- bytes that can't be mids.
-- needs: messages options ready left_ready any count_in is_mid own_options
local MAX_STALE = 1000

-- Drop the stale copies at the head. -> remaining notes
local function drop_stale()
  local notes = redis.call('SCARD', left_ready)
  local head, n = redis.call('LRANGE', ready, 0, math.min(notes, MAX_STALE) - 1), 0
  if not head[1] then -- no copies, so no note is true
    redis.call('DEL', left_ready)
    any.left_ready = false
    return 0
  end
  local noted = redis.call('SMISMEMBER', left_ready, unpack(head))
  while noted[n + 1] == 1 do n = n + 1 end
  if n > 0 then
    redis.call('LTRIM', ready, n, -1)
    redis.call('SREM', left_ready, unpack(head, 1, n))
  end
  return notes - n
end

-- The beginning of `window` with up to 4 MiB of content, measured before it is read.
local function readable(window)
  local bytes, i = redis.call('HSTRLEN', messages, window[1]), 1
  while window[i + 1] and bytes <= MAX_BYTES do
    bytes, i = bytes + redis.call('HSTRLEN', messages, window[i + 1]), i + 1
  end
  return {unpack(window, 1, bytes > MAX_BYTES and math.max(1, i - 1) or i)}
end

-- Entries of `window` that can't be mids, by index.
local function strange_ones(window)
  local strange = {}
  for i, mid in ipairs(window) do strange[i] = not is_mid(mid) end
  return strange
end

-- The count of each mid that has one, by index.
local function counts(key, mids)
  local values = redis.call('HMGET', key, unpack(mids))
  for i = 1, #mids do values[i] = values[i] and count_in(values[i]) end
  return values
end

-- The own lock length of each mid that has one, by index.
local function lock_lengths(mids)
  local lengths = {}
  local own = redis.call('HMGET', options, unpack(mids))
  for i = 1, #mids do
    if own[i] and string.byte(own[i]) ~= 44 then lengths[i] = own_options(own[i]) end -- it begins with no comma
  end
  return lengths
end
