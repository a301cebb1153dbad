-- clock: now_ms, the topic's time, which only goes back if the clock steps back by more than a minute.
-- needs: state time_ms
local now_ms
local function read_clock(now)
  now_ms = time_ms(now)
  if now_ms < state.last_at and state.last_at - now_ms <= 60000 then now_ms = state.last_at end
end
