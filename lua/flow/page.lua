#!lua flags=no-writes
--[[
page: list members of a step that may be live, or that ended without being done.

KEYS
  meta:hash steps:hash done:string ended:string retried:string
ARGV
  step  the step of the members
  what  `live`: not ended, or retried; `failed`: ended and not done; `revive`: `failed` members that the
        latest retry has not reached
  cursor  first member
  limit  maximum number of members
RETURNS  {first member of the next page, or -1, then the numbers}. A page may be empty although another follows
COST     O(32,768 members)
WRITES   nothing
]]
local meta, steps, done, ended, retried = unpack(KEYS)
local step, what, cursor, limit = unpack(ARGV)

--@include shared/_arguments
local MAX_LOOKED_AT, MAX_MEMBERS = 32768, 10000000
keys_are(5)
arguments_are(4)
one_of('what', what, 'live', 'failed', 'revive')
cursor = whole('cursor', cursor, 0, MAX_MEMBERS)
limit = whole('limit', limit, 1, 1000)
--@include _flow

local flow = read_flow()
local s = flow and step_of(step)
if not s then return {-1} end
local size = math.min(s.size, MAX_MEMBERS)
if what == 'revive' then cursor = math.max(cursor, math.min(s.revived, size)) end
local stop, page = math.min(size, cursor + MAX_LOOKED_AT), {0}

-- The bits from `first` to `last` as bytes, and the number of the first byte's first bit.
local function bytes_of(key, first, last)
  return redis.call('GETRANGE', key, text(math.floor(first / 8)), text(math.floor(last / 8)))
end

local function is_set(bytes, at)
  local byte = string.byte(bytes, math.floor(at / 8) + 1) or 0
  return math.floor(byte / 2 ^ (7 - at % 8)) % 2 == 1
end

-- Members `from` to `to` (excluded), whose bits begin at `bit`. -> the first member that wasn't checked
local function look(from, to, bit)
  local last, offset, number = bit + to - from - 1, bit % 8, from
  local e, d, r = bytes_of(ended, bit, last), bytes_of(done, bit, last), bytes_of(retried, bit, last)
  while number < to do
    local at = offset + number - from
    local byte = math.floor(at / 8) + 1
    local eb, db, rb = string.byte(e, byte) or 0, string.byte(d, byte) or 0, string.byte(r, byte) or 0
    local dull = what == 'live' and eb == 255 and rb == 0 or what ~= 'live' and eb == db
    if dull then
      number = math.min(to, number + 8 - at % 8)
    else
      local wanted
      if what == 'live' then
        wanted = not is_set(e, at) or is_set(r, at)
      else
        wanted = is_set(e, at) and not is_set(d, at)
      end
      number = number + 1
      if wanted then
        page[#page + 1] = number - 1
        if #page > limit then return number end
      end
    end
  end
  return number
end

local begins = 0
for _, extent in ipairs(s.extents) do
  -- Damaged extents may go beyond the bits that a flow can have. No member there ever ends.
  local ends, there = begins + extent[2], math.min(begins + extent[2], begins + MAX_BITS - extent[1])
  if cursor < ends and cursor < stop and #page <= limit then
    if cursor < there then cursor = look(cursor, math.min(there, stop), extent[1] + cursor - begins) end
    if cursor >= there then cursor = math.min(ends, stop) end
  end
  begins = ends
end
page[1] = cursor < size and cursor < begins and cursor or -1
return page
