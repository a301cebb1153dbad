-- keep_state: the state lives at least so long from now on.
-- needs: state
local function keep_state(life_ms)
  if redis.call('PTTL', state) < life_ms then redis.call('PEXPIRE', state, string.format('%.0f', life_ms)) end
end
