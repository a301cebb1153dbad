-- batch: accept messages that have each a time of its own before which nobody gets them.
-- A batch is 8 digits, the length of its head; the head, MessagePack of {mid, when, size, mid, when, size, …}; and the
-- contents one after the other, of these sizes. (cmsgpack doesn't read bytes that are no text.)
-- needs: write_together write_each write_options put_ready put_due level emit now_ms max_content meta
local times = {}

-- 'd500': in half a second, 'a1700000000000': then, '': now
local function time_of(when)
  local number = tonumber(string.sub(when, 2)) or 0
  return string.sub(when, 1, 1) == 'd' and now_ms + number or number
end

local function unpacked(batch)
  local pairs_, place = {}, 9 + tonumber(string.sub(batch, 1, 8))
  local head = cmsgpack.unpack(string.sub(batch, 9, place - 1))
  for i = 1, #head, 3 do
    local mid, size = head[i], head[i + 2]
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = mid, string.sub(batch, place, place + size - 1)
    times[mid], place = times[mid] or time_of(head[i + 1]), place + size
  end
  return pairs_
end

local function place_new(mids)
  local now_ready, later = {}, {}
  for _, mid in ipairs(mids) do
    local place = times[mid] > now_ms and later or now_ready
    place[#place + 1] = mid
  end
  write_options(mids)
  if now_ready[1] then put_ready(now_ready) end
  if later[1] then put_due(later, times) end
end

-- Up to 1,000 messages -> the script's reply
local function accept_batch(batch)
  local given, again, longest = unpacked(batch), {}, max_content
  local short = #given / 2 * max_content <= 4194304
  local new = (short and write_together or write_each)(given, again)
  if new[1] then place_new(new) end
  for i = 1, #given, 2 do
    if not again[i] then
      longest = math.max(longest, #given[i + 1])
      if level == 'all' then emit('enqueued', given[i], now_ms, '\31\31\31\31\31\31\31\31\31' .. #given[i + 1]) end
    end
  end
  if longest > max_content then redis.call('HSET', meta, 'max_content', longest) end
  return {'ok', tostring(#new), tostring(#given / 2 - #new)}
end
