-- to_dead: dead-letter a message that was delivered too often, with its content and its count.
-- needs: dead tokens delivered now_ms sane
local function to_dead(id)
  local latest = redis.call('ZRANGE', dead, -1, -1, 'WITHSCORES')[2]
  local died_at = math.max(now_ms, (sane(latest) or 0) + 1 / 2048)
  redis.call('ZREM', delivered, id)
  redis.call('HDEL', tokens, id)
  redis.call('ZADD', dead, string.format('%.17g', died_at), id)
end
