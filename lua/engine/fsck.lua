#!lua flags=no-writes
--[[
fsck: check one stretch of one place against the invariants; nothing is mended here.

KEYS
  messages:hash locks:hash tokens:hash backoffs:hash nattempts:hash ncrashes:hash generations:hash
  requeue:hash options:hash progress:hash ready:list due:zset circle:list done:set left_ready:set
  left_circle:set dead:zset dead_messages:hash meta:hash
ARGV
  stretch  'totals' | 'ready' | 'circle' | 'due' | 'done' | 1-9: the hash at this place in KEYS after messages
  cursor   offset in a list or due, or HSCAN's
  limit    entries looked at, 1-1000
RETURNS  {next cursor, entries seen, violations, then seen mids, then per violation: rule, mid}; cursor '0' = end
COST     O(limit), and O(cursor) in a list
WRITES   nothing
]]
local messages, locks, tokens, backoffs, nattempts, ncrashes, generations, requeue, options, progress,
  ready, due, circle, done, left_ready, left_circle, dead, dead_messages, meta = unpack(KEYS)
local stretch, cursor, limit = unpack(ARGV)

--@include _check

local function listed(list, notes)
  local mids, seen = redis.call('LRANGE', list, cursor, cursor + limit - 1), {}
  for _, mid in ipairs(mids) do
    if redis.call('SISMEMBER', notes, mid) == 0 then
      seen[#seen + 1] = mid
      check[stretch](mid)
    end
  end
  return #mids < tonumber(limit) and '0' or cursor + #mids, seen
end

local function due_stretch()
  local mids = redis.call('ZRANGE', due, cursor, cursor + limit - 1)
  for _, mid in ipairs(mids) do check.due(mid) end
  return #mids < tonumber(limit) and '0' or cursor + #mids, mids
end

local function side(command, key, step)
  local reply = redis.call(command, key, cursor, 'COUNT', limit)
  for i = 1, #reply[2], step do
    rule(has(messages, reply[2][i]), 'side record without message', reply[2][i])
  end
  return reply[1], {}
end

local following, seen = '0', {}
if stretch == 'totals' then
  totals()
elseif stretch == 'ready' then
  following, seen = listed(ready, left_ready)
elseif stretch == 'circle' then
  following, seen = listed(circle, left_circle)
elseif stretch == 'due' then
  following, seen = due_stretch()
elseif stretch == 'done' then
  following = side('SSCAN', done, 1)
else
  following = side('HSCAN', KEYS[1 + stretch], 2)
end
local reply = {tostring(following), #seen, #bad / 2}
for _, mid in ipairs(seen) do reply[#reply + 1] = mid end
for _, item in ipairs(bad) do reply[#reply + 1] = item end
return reply
