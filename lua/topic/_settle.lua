-- settle: what `token` holds is done with, up to `through` or all of it; 'stale' when it holds nothing any more.
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
