#!lua flags=no-writes
--[[
content: one page of the messages in one place, of about 256 KiB of mids and content at most.

KEYS
  messages:hash locks:hash backoffs:hash nattempts:hash ncrashes:hash requeue:hash ready:list due:zset
  circle:list done:set left_ready:set left_circle:set lines:hash meta:hash events:stream
ARGV
  place   'ready' | 'due' | 'circle' | 'lines', in no order
  offset  of the page, from 0; in lines the offset that the previous page returned
  limit   entries looked at, 1-1000
  now     epoch ms, or '' for the server's clock
RETURNS  {entries looked at, or the offset of the next page of lines, 0 at the end, perhaps fewer than there are, then per message: mid, status, attempts, ncrashes, not_before or 0, lock_at or 0,
         content}; stale copies are left out
COST     O(offset + limit)
WRITES   nothing
]]
local messages, locks, backoffs, nattempts, ncrashes, requeue, ready, due, circle, done, left_ready, left_circle,
  lines, meta, events = unpack(KEYS)
local place, offset, limit, now = unpack(ARGV)

--@include shared/_arguments
keys_are(15)
arguments_are(4)
one_of('place', place, 'ready', 'due', 'circle', 'lines')
offset, limit = whole('offset', offset, 0, 9007199254740991), whole('limit', limit, 1, 1000)
--@include _stored
--@include _counters
--@include _attempts
--@include shared/_clock
--@include _clock
read_clock(now)
--@include _status
local PAGE_BYTES = 262144
-- Mids per read: they may be long if another program wrote them.
local STEP = 25

local list, notes = ready, left_ready
if place == 'circle' then list, notes = circle, left_circle end
local function mids_from(first, count)
  if place == 'due' then return redis.call('ZRANGE', due, first, first + count - 1) end
  return redis.call('LRANGE', list, first, first + count - 1)
end

local page, looked_at, bytes = {0}, 0, 0
local function add(item) page[#page + 1] = item end
local function look_at(mid)
  looked_at, bytes = looked_at + 1, bytes + #mid
  if place ~= 'due' and place ~= 'lines' and redis.call('SISMEMBER', notes, mid) == 1 then return end
  add(mid)
  add(status(mid))
  add(count_in(attempts_in(mid)))
  for _, key in ipairs({ncrashes, backoffs, locks}) do
    add(count_of(key, mid))
  end
  local content = redis.call('HGET', messages, mid) or ''
  bytes = bytes + #content
  add(content)
end

if place == 'lines' then
  local reply = redis.call('HSCAN', lines, string.format('%.0f', offset), 'COUNT', math.min(STEP, limit))
  for i = 2, #reply[2], 2 do look_at(reply[2][i]) end
  page[1] = tonumber(reply[1])
  return page
end
repeat
  local mids = mids_from(offset + looked_at, math.min(STEP, limit - looked_at))
  for _, mid in ipairs(mids) do
    if bytes < PAGE_BYTES then look_at(mid) end
  end
until #mids == 0 or looked_at >= limit or bytes >= PAGE_BYTES
page[1] = looked_at
return page
