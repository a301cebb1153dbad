-- check_types: the type of each key of live messages, and which of the rarely used keys exist. A key of another
-- type raises here, where nothing is written yet. A script that begins to use such a key sets it in `any`.
-- needs: messages options backoffs ready due circle left_ready left_circle wake locks nattempts ncrashes requeue done tokens nunknowns generations progress
local any = {}
if redis.call('EXISTS', ncrashes, nunknowns, generations, requeue, options, progress, left_ready, left_circle) > 0 then
  any.sides = true
  any.crashes, any.unknowns = redis.call('HLEN', ncrashes) > 0, redis.call('HLEN', nunknowns) > 0
  any.newer, any.options = redis.call('HLEN', requeue) > 0, redis.call('HLEN', options) > 0
  any.left_ready, any.left_circle = redis.call('SCARD', left_ready) > 0, redis.call('SCARD', left_circle) > 0
  probe('HLEN', generations)
  any.nprogress = redis.call('HLEN', progress)
end
any.due = redis.call('ZCARD', due) > 0
probe('HLEN', messages, locks, tokens, backoffs, nattempts)
probe('LLEN', ready, circle)
probe('SCARD', done)
local nwake = redis.call('LLEN', wake)
