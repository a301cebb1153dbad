#!lua flags=no-writes
--[[
content: one page of the messages in one place, of about 256 KiB of content at most.

KEYS
  messages:hash locks:hash backoffs:hash nattempts:hash ncrashes:hash requeue:hash ready:list due:zset
  circle:list done:set left_ready:set left_circle:set meta:hash events:stream
ARGV
  place   'ready' | 'due' | 'circle'
  offset  of the page, from 0
  limit   entries looked at, 1-1000
  now     epoch ms, or '' for the server's clock
RETURNS  {entries looked at, perhaps fewer than there are, then per message: mid, status, attempts, ncrashes, not_before or 0, lock_at or 0,
         content}; stale copies are left out
COST     O(offset + limit)
WRITES   nothing
]]
local messages, locks, backoffs, nattempts, ncrashes, requeue, ready, due, circle, done, left_ready, left_circle,
  meta, events = unpack(KEYS)
local place, offset, limit, now = unpack(ARGV)

--@include shared/_arguments
keys_are(14)
arguments_are(4)
one_of('place', place, 'ready', 'due', 'circle')
offset, limit = whole('offset', offset, 0, 9007199254740991), whole('limit', limit, 1, 1000)
--@include _stored
--@include _counters
--@include _clock
--@include _status
local PAGE_BYTES = 262144

local list, notes = ready, left_ready
if place == 'circle' then list, notes = circle, left_circle end
local mids
if place == 'due' then
  mids = redis.call('ZRANGE', due, offset, offset + limit - 1)
else
  mids = redis.call('LRANGE', list, offset, offset + limit - 1)
end
local page, bytes = {#mids}, 0
local function add(item) page[#page + 1] = item end
for i, mid in ipairs(mids) do
  if bytes >= PAGE_BYTES then
    page[1] = i - 1
    break
  end
  if place == 'due' or redis.call('SISMEMBER', notes, mid) == 0 then
    add(mid)
    add(status(mid))
    for _, key in ipairs({nattempts, ncrashes, backoffs, locks}) do
      add(count_of(key, mid))
    end
    local content = redis.call('HGET', messages, mid) or ''
    bytes = bytes + #mid + #content
    add(content)
  end
end
return page
