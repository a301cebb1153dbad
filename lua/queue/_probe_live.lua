-- probe_live: the types of the keys of live messages, by commands that a producer may send. A key of another type
-- raises.
-- needs: messages options backoffs ready due circle left_ready left_circle locks nattempts ncrashes requeue done tokens nunknowns generations progress
local function probe_live()
  for _, key in ipairs({
    messages, locks, tokens, backoffs, nattempts, ncrashes, nunknowns, generations, requeue, options, progress
  }) do
    redis.call('HEXISTS', key, '')
  end
  probe('LLEN', ready, circle)
  probe('SCARD', done, left_ready, left_circle)
  redis.call('ZRANK', due, '')
end
