#!lua
--[[
append: add messages at the end, all or none. Each gets the next index.

KEYS
  log:stream base:stream clean:stream newest:hash marks:zset meta:hash last_call:string
ARGV
  caller  random id of the caller, as in the name of last_call
  number  of this call, counted up by the caller
  now     epoch ms, or '' for the server's clock
  then per message: the fields it has, of 'm' content, 'k' key, 'h' headers, in this order, as one word
  ('m', 'mk', 'mh', 'mkh', 'k', 'kh'), and a value for each; without m: the key is deleted
RETURNS  {'ok', first index, last index, appended at}; {'closed'}
COST     O(messages), and O(messages) of retention and compaction
WRITES   nothing when memory is full or the call is refused
]]
local log, base, clean, newest, marks, meta, last_call = unpack(KEYS)
local caller, number, now = unpack(ARGV, 1, 3)

-- The usual call passes without the functions that describe errors.
local find = string.find
if not (#KEYS == 7 and now == '' and #caller <= 64 and find(caller, '^[!-~]+$') and #number <= 15 and find(number, '^%d+$')) then
--@include shared/_arguments
keys_are(7)
--@include shared/_caller
checked_number(caller, number)
whole_or_none('now', now, 0, 253402300799999)
end
--@include shared/_call
--@include _record_life
local call = open_call(last_call, tonumber(number))
--@include _state
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _entries

if call.refused then return {'closed'} end
if call.kept then
  local first, last, at = string.match(call.kept, '^(%d+) (%d+) (%d+)$')
  if not first then return redis.error_reply('ERR the record of this call is damaged') end
  return {'ok', tonumber(first), tonumber(last), tonumber(at)}
end

local SHAPES = {m = 1, mk = 1, mh = 1, mkh = 1, k = 1, kh = 1}
local place, nmessages, total = 4, 0, 0
while place <= #ARGV do
  local shape = ARGV[place]
  if not SHAPES[shape] or place + #shape > #ARGV then return redis.error_reply('ERR bad fields of a message') end
  for i = place + 1, place + #shape do
    if #ARGV[i] > 1048576 then return redis.error_reply('ERR message too large') end
    total = total + #ARGV[i]
  end
  place, nmessages = place + #shape + 1, nmessages + 1
end
if nmessages == 0 or nmessages > 1000 then return redis.error_reply('ERR append takes 1 to 1000 messages') end

if state.healed then
  state.bytes = tonumber(redis.call('ZRANGE', marks, 0, 0, 'REV', 'WITHSCORES')[2]) or 0
  state.marked = state.bytes
end
local first_new, behind = state.last + 1, '-' .. text(now_ms)
local stretch = state.max_bytes > 0 and math.min(65536, state.max_bytes / 16) or 65536
-- A key of another type raises here, where nothing is written yet; the log does so by the first XADD.
local upkeep = state.max_age + state.max_count + state.max_bytes + state.compact > 0
if upkeep or state.last == 0 or state.bytes + total - state.marked >= stretch then redis.call('ZCARD', marks) end
if upkeep then
  redis.call('XLEN', base)
  redis.call('XLEN', clean)
  redis.call('HLEN', newest)
end
place = 4
while place <= #ARGV do
  local shape, size = ARGV[place], #ARGV[place + 1]
  state.last = state.last + 1
  if shape == 'm' then
    redis.call('XADD', log, text(state.last) .. behind, 'm', ARGV[place + 1])
  else
    local fields = {}
    for i = 1, #shape do fields[2 * i - 1], fields[2 * i] = string.sub(shape, i, i), ARGV[place + i] end
    for i = 2, #shape do size = size + #ARGV[place + i] end
    redis.call('XADD', log, text(state.last) .. behind, unpack(fields))
  end
  if state.last == 1 or state.bytes - state.marked >= stretch then
    redis.call('ZADD', marks, text(state.bytes), text(state.last))
    state.marked = state.bytes
  end
  state.bytes, state.longest = state.bytes + size, math.max(state.longest, size)
  place = place + #shape + 1
end
redis.call('HSET', meta, 'last', text(state.last), 'last_at', text(now_ms), 'bytes', text(state.bytes),
  'longest', text(state.longest), 'marked', text(state.marked))
if state.healed then
  redis.call('HSET', meta, 'first', text(state.first), 'base_to', text(state.base_to))
end
record_call(call, text(first_new) .. ' ' .. text(state.last) .. ' ' .. text(now_ms), life_of(call))
-- Make these functions only if needed, because that costs more than a message.
if upkeep then
--@include _find
--@include _retain
--@include _compact
--@include _upkeep
  keep_up(nmessages)
end
return {'ok', first_new, state.last, now_ms}
