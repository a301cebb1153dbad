-- keep: store the queue's time after look, so that it continues after a step of the server's clock.
-- needs: meta skew kept_skew
local function keep_time()
  if skew == kept_skew then return end
  if skew == 0 then redis.call('HDEL', meta, 'skew') else redis.call('HSET', meta, 'skew', string.format('%.0f', skew)) end
  kept_skew = skew
end
