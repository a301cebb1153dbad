-- settle: complete the messages of `token`, up to `through` or all; 'stale' if it no longer holds any.
-- needs: held batch_of let_go
local function settle(token, through)
  local first, last = batch_of(token)
  if not first then return 'stale' end
  through = tonumber(through) or last
  if through >= last then
    let_go(token)
  elseif through >= first then
    redis.call('ZADD', held, through + 1, token)
  end
  return 'ok'
end
