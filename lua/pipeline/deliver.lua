#!lua
--[[
deliver: enqueue messages with individual times, all or none.

KEYS
  messages:hash options:hash locks:hash backoffs:hash ready:list due:zset circle:list left_ready:set left_circle:set
  keys:hash lines:hash turns:zset rests:zset rules:hash eoq_backoff:string wake:list meta:hash events:stream last_call:string
ARGV
  caller     random id of the caller, as in the name of last_call
  number     of this call, counted up by the caller
  now        epoch ms, or '' for the server's clock
  dedupe_ms  how long to reject its mid after it is done
  keyed      'key' | 'ordered': each message has a key, as in enqueue; '' = none has
  batch      messages with their times: 8 digits, the length of the head; the head, MessagePack of
             {mid, when, size, mid, when, size, …}, with keyed {mid, when, size, key, …}; and the contents one after
             the other, of these sizes
RETURNS  {'ok', number added, number whose mid is already live}; {'closed'} | {'full', key, most} | {'sealed', epoch}, as enqueue
COST     O(messages)
WRITES   nothing when memory or a line is full, or the call is refused; live messages stay unchanged
]]
local messages, options, locks, backoffs, ready, due, circle, left_ready, left_circle, keys, lines, turns, rests, rules,
  eoq_backoff, wake, meta, events, last_call = unpack(KEYS)
local caller, number, now, dedupe_ms, keyed, batch = unpack(ARGV, 1, 6)

--@include shared/_arguments
keys_are(19)
arguments_are(6)
one_of('keyed', keyed, '', 'key', 'ordered')
--@include queue/_stored
whole_or_none('dedupe_ms', dedupe_ms, 0, MAX_MS)
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
-- A queue that never had keys begins to have some.
local begins = keyed ~= '' and not turn
if begins then turn = 0 end
--@include queue/_wake
--@include queue/_dequeue_rate
--@include queue/_lines
--@include queue/_notes
--@include queue/_accept

-- A batch is text and bytes, because cmsgpack only reads bytes that are text.
local times, key_of = {}, {}

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
  local width = keyed == '' and 3 or 4
  if not length or not read or type(head) ~= 'table' or #head % width ~= 0 or #head < width or #head > 1000 * width then
    refuse('the batch', '8 digits, a head of 1 to 1000 messages, and their contents')
  end
  for i = 1, #head, width do
    local mid, size, key = head[i], head[i + 2], width == 4 and head[i + 3] or ''
    if type(mid) ~= 'string' or mid == '' or #mid > MAX_MID_LENGTH or not is_text(mid) or string.byte(mid) == 126 then
      refuse('a mid of the batch', '1 to 512 bytes of UTF-8 without control characters, and without ~ in front')
    end
    if type(size) ~= 'number' or size < 0 or size > 1048576 or size % 1 ~= 0 or type(head[i + 1]) ~= 'string' then
      refuse('a size of the batch', 'a whole number from 0 to 1048576')
    end
    if type(key) ~= 'string' or #key > 512 or not is_text(key) then
      refuse('a key of the batch', '512 bytes of UTF-8 without control characters at most')
    end
    if key ~= '' and not times[mid] then key_of[mid] = key end
    pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = mid, string.sub(batch, place, place + size - 1)
    times[mid], place = times[mid] or time_of(head[i + 1]), place + size
  end
  if place ~= #batch + 1 then refuse('the contents of the batch', 'of the length in its head') end
  return pairs_
end

local function place_new(mids)
  local now_ready, later, lined, plain = {}, {}, {}, {}
  local own, mark = ',' .. dedupe_ms, keyed == 'ordered' and 'o' or ''
  for _, mid in ipairs(mids) do
    local key, waits = key_of[mid], times[mid] > now_ms
    local place = waits and later or key and lined or now_ready
    place[#place + 1] = mid
    if not key then plain[#plain + 1] = mid end
    if key and waits then write_options({mid}, own .. ',' .. mark .. ',' .. key) end
  end
  write_options(plain, own)
  if lined[1] then in_lines().put(lined, key_of, own, mark) end
  if now_ready[1] then put_ready(now_ready) end
  if later[1] then put_due(later, times) end
end

-- Delayed messages aren't counted: each joins its line when it is due.
local function full_line(given)
  local mids, starting = {}, {}
  for i = 1, #given, 2 do
    local mid = given[i]
    if key_of[mid] and times[mid] <= now_ms then mids[#mids + 1], starting[mid] = mid, key_of[mid] end
  end
  if mids[1] then return in_lines().full_line(mids, starting) end
end

-- Up to 1,000 messages -> the script's reply
local function accept_batch(batch)
  local given, again, longest = unpacked(batch), {}, max_content
  -- Keys of another type raise here, before the first write; a producer may send these commands.
  probe('LLEN', ready)
  for _, key in ipairs({messages, options, backoffs}) do redis.call('HEXISTS', key, '') end
  redis.call('ZRANK', due, '')
  probe('HLEN', locks)
  local full, most = full_line(given)
  if full then return {'full', full, tostring(most)} end
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
if sealed then return {'sealed', sealed} end
local words = accept_batch(batch)
if words[1] == 'full' then return words end
save_lines()
if begins and next(key_of) and words[2] ~= '0' then redis.call('HSETNX', meta, 'turn', '0') end
record_call(call, table.concat(words, '\31') .. '\30')
return words
