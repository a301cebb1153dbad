-- keep_state: extend the life of the state to at least this long.
-- needs: state
local function keep_state(life_ms)
  if redis.call('PTTL', state) < life_ms then redis.call('PEXPIRE', state, string.format('%.0f', life_ms)) end
end
