#!lua
--[[
reserve: assign numbers to the members of a map's next chunk, and record that all earlier chunks are enqueued.

KEYS
  meta:hash steps:hash done:string ended:string
ARGV
  now  epoch ms, or '' for the server's clock
  run  id of the expected run of the flow; '' = any run
  step  the map
  chunk  its number, from 0
  count  members of this chunk; all but the last chunk have 250
RETURNS  {outcome, index of the chunk's first member, chunks reserved}. Outcomes:
         `new`; `doubt`: it was reserved before, and no later chunk was; `added`: it is enqueued; `sealed`; `closed`: the
         flow has ended, was cancelled or is gone; `other`: the count differs, or a chunk was left out
COST     O(1), O(members so far) when the bits grow, which is at every doubling, and every 65,000 members
WRITES   meta, done and ended
]]
local meta, steps, done, ended = unpack(KEYS)
local now, run, step, chunk, count = unpack(ARGV)

--@include shared/_arguments
keys_are(4)
arguments_are(5)
whole_or_none('now', now, 0, 253402300799999)
chunk = whole('chunk', chunk, 0, 39999)
count = whole('count', count, 1, 250)
probe('HLEN', meta, steps)
probe('STRLEN', done, ended)
--@include shared/_clock
--@include _flow

-- Blocks of such a length that a million bits and the server's header fit 128 KiB.
local PER_CHUNK, MIN_BLOCK, MAX_BLOCK = 250, 250, 65000
local now_ms, flow = time_ms(now), read_flow(run)
local s = flow and step_of(step)
if flow and (not s or s.kind ~= 'map') then refuse('step', 'a map') end
if not flow or flow.over > 0 or flow.state == 'cancelled' then return {'closed', 0, 0} end
local first = chunk * PER_CHUNK
if s.sealed == 1 then return {'sealed', first, s.chunks} end
if chunk + 1 < s.chunks then return {'added', first, s.chunks} end
if chunk + 1 == s.chunks then
  return {s.size - first == count and 'doubt' or 'other', first, s.chunks}
end
if flow.bits >= MAX_BITS or chunk > s.chunks or s.size ~= first then return {'other', first, s.chunks} end

-- Bits that are created together don't take more memory than necessary.
local function grow(key, bits)
  local missing = math.ceil(bits / 8) - redis.call('STRLEN', key)
  if missing <= 0 then return end
  local grown = (redis.call('GET', key) or '') .. string.rep('\0', missing)
  local left = redis.call('PTTL', meta)
  if left > 0 then redis.call('SET', key, grown, 'PX', text(left)) else redis.call('SET', key, grown) end
end

local room = 0
for _, extent in ipairs(s.extents) do room = room + extent[2] end
if room < s.size + count then
  local length = math.min(math.max(MIN_BLOCK, room), MAX_BLOCK)
  local last = s.extents[#s.extents]
  if last and last[1] + last[2] == flow.bits then
    last[2] = last[2] + length
  else
    s.extents[#s.extents + 1] = {flow.bits, length}
  end
  flow.bits = flow.bits + length
  grow(done, flow.bits)
  grow(ended, flow.bits)
  local parts = {}
  for i, extent in ipairs(s.extents) do parts[i] = text(extent[1]) .. ':' .. text(extent[2]) end
  redis.call('HSET', meta, 'x:' .. step, table.concat(parts, ','))
end
s.size, s.chunks, s.added_at, s.changed = s.size + count, s.chunks + 1, now_ms, true
write_flow(flow)
return {'new', first, s.chunks}
