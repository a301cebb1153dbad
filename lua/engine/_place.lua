-- place: a live mid is in exactly one of ready, due, circle; each list holds at most one copy of it.
-- A mid that leaves a list out of turn leaves its copy, noted; coming back takes the copy over.
-- needs: ready due circle backoffs left_ready left_circle eoq_backoff wake
local function wake_up()
  redis.call('DEL', eoq_backoff)
  if redis.call('LLEN', wake) == 0 then redis.call('LPUSH', wake, '1') end
end

local function to_ready(mid, front)
  if redis.call('SREM', left_ready, mid) == 0 then
    redis.call(front and 'LPUSH' or 'RPUSH', ready, mid)
  end
  wake_up()
end

local function to_due(mid, at)
  local score = string.format('%.0f', at)
  redis.call('HSET', backoffs, mid, score)
  redis.call('ZADD', due, score, mid)
  if redis.call('ZRANK', due, mid) == 0 then wake_up() end
end

local function leave_due(mid)
  redis.call('ZREM', due, mid)
  redis.call('HDEL', backoffs, mid)
end

-- The mids come back to a list: copies of theirs that were noted as stale are theirs again. -> those without one
local function take_over(notes, mids)
  if redis.call('SCARD', notes) == 0 then return mids end
  local noted, back, fresh = redis.call('SMISMEMBER', notes, unpack(mids)), {}, {}
  for i, mid in ipairs(mids) do
    if noted[i] == 1 then back[#back + 1] = mid else fresh[#fresh + 1] = mid end
  end
  if back[1] then redis.call('SREM', notes, unpack(back)) end
  return fresh
end

local function leave_ready(mid) redis.call('SADD', left_ready, mid) end
local function leave_circle(mid) redis.call('SADD', left_circle, mid) end
