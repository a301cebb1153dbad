#!lua
--[[
deliver: enqueue messages that have each their own time, whole or not at all.

KEYS
  messages:hash options:hash backoffs:hash ready:list due:zset circle:list left_ready:set left_circle:set
  eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller     random id of who calls, as in last_call's name
  number     of this call, counted up by the caller
  now        epoch ms, or '' for the server's clock
  dedupe_ms  how long to refuse its mid after it is done
  batch      messages with their times: 8 digits, the length of the head; the head, MessagePack of
             {mid, when, size, mid, when, size, …}; and the contents one after the other, of these sizes
RETURNS  {'ok', number added, number whose mid lives already}; {'closed'}
COST     O(messages)
WRITES   nothing when memory is full or the call is refused; messages that live already stay as they are
]]
local messages, options, backoffs, ready, due, circle, left_ready, left_circle, eoq_backoff, wake,
  meta, events, last_call = unpack(KEYS)
local caller, number, now, dedupe_ms, batch = unpack(ARGV, 1, 5)

--@include shared/_arguments
keys_are(13)
arguments_are(5)
--@include queue/_stored
whole_or_none('dedupe_ms', dedupe_ms, 0, MOST_MS)
--@include shared/_caller
--@include shared/_call
number = checked_number(caller, number)
local call = open_call(last_call, number)
--@include shared/_clock
--@include queue/_clock
read_clock(now)
--@include queue/_text
local any = {left_ready = redis.call('SCARD', left_ready) > 0}
local nwake = redis.call('LLEN', wake)
--@include queue/_wake
--@include queue/_place
--@include queue/_accept

-- A batch is text and bytes, since cmsgpack doesn't read bytes that are no text.
local times = {}

-- 'd500': in half a second, 'a1700000000000': then, '': now
local function time_of(when)
  local kind, digits = string.match(when, '^([ad])(%d+)$')
  if when == '' then return 0 end
  if not kind or #digits > 15 then refuse('a time of the batch', 'd or a and digits, or nothing') end
  return math.min(LATEST_MS, kind == 'd' and now_ms + tonumber(digits) or tonumber(digits))
end

local function unpacked(batch)
  local length = string.match(string.sub(batch, 1, 8), '^%d%d%d%d%d%d%d%d$')
  local pairs_, place = {}, 9 + (tonumber(length) or #batch)
  local read, head = pcall(cmsgpack.unpack, string.sub(batch, 9, place - 1))
  if not length or not read or type(head) ~= 'table' or #head % 3 ~= 0 or #head < 3 or #head > 3000 then
    refuse('the batch', '8 digits, a head of 1 to 1000 messages, and their contents')
  end
  for i = 1, #head, 3 do
    local mid, size = head[i], head[i + 2]
    if type(mid) ~= 'string' or mid == '' or #mid > LONGEST_MID or not is_text(mid) then
      refuse('a mid of the batch', '1 to 512 bytes of UTF-8 without control characters')
    end
    if type(size) ~= 'number' or size < 0 or size > 1048576 or size % 1 ~= 0 or type(head[i + 1]) ~= 'string' then
      refuse('a size of the batch', 'a whole number from 0 to 1048576')
    end
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = mid, string.sub(batch, place, place + size - 1)
    times[mid], place = times[mid] or time_of(head[i + 1]), place + size
  end
  if place ~= #batch + 1 then refuse('the contents of the batch', 'of the length in its head') end
  return pairs_
end

local function place_new(mids)
  local now_ready, later = {}, {}
  for _, mid in ipairs(mids) do
    local place = times[mid] > now_ms and later or now_ready
    place[#place + 1] = mid
  end
  write_options(mids, ',' .. dedupe_ms)
  if now_ready[1] then put_ready(now_ready) end
  if later[1] then put_due(later, times) end
end

-- Up to 1,000 messages -> the script's reply
local function accept_batch(batch)
  local given, again, longest = unpacked(batch), {}, max_content
  -- Keys of another type raise here, where nothing is written yet; by commands that a producer may send.
  probe('LLEN', ready)
  for _, key in ipairs({messages, options, backoffs}) do redis.call('HEXISTS', key, '') end
  redis.call('ZRANK', due, '')
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

if call.refused then return {'closed'} end
if call.kept then
--@include queue/_recorded
  return kept_words(call.kept)
end
local words = accept_batch(batch)
record_call(call, table.concat(words, '\31') .. '\30')
return words
